"""A bag: the features and coordinates of one slide, in numpy, checked when it is made."""

from __future__ import annotations

import json
import numbers
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from sacmil.errors import BagError, BagWarning, InputError
from sacmil.units import Level0Px, Microns, MicronsPerPixel, TilePx, to_microns

TILE_SIZE_TOLERANCE = 0.05
"""Largest relative difference between the tile sizes in µm of two bags that count as equal."""
_CHUNK_SIZE = 2**18
"""Values checked at a time: they fit into a CPU cache."""
_MIN_LENGTH, _MAX_LENGTH = 1e-6, 1e9
"""Bounds of tile sides in pixels and of µm per pixel; beyond them coordinates overflow."""
_MAX_PIXELS = 2**53
"""Largest side of a slide: up to here float64 represents every whole number."""


class EncoderId(NamedTuple):
    """Name of the encoder that made the features, and a hash of its weights where known."""

    name: str
    hash: str | None = None


@dataclass(frozen=True, eq=False)
class Bag:
    """The features and coordinates of one slide.

    Row i of every array belongs to instance i. Construction converts to the stored types: features
    float16 or float32, coordinates int64 where they are whole, else float64. It rejects invalid
    values. Equal coordinates are allowed with a warning.
    """

    slide_id: str
    """File stem of the slide; the key of every table."""
    features: npt.NDArray[np.floating]
    """(N, D), float16 or float32."""
    coords: npt.NDArray[np.number]
    """(N, 2), level-0 pixels, x then y, upper left corner of the tile."""
    patch_size: Level0Px
    """Side of a tile in level-0 pixels."""
    mpp: MicronsPerPixel | None = None
    """Microns per level-0 pixel."""
    labels: npt.NDArray[np.integer] | None = None
    """(N,), stored as int64: the truth of each instance, where it is known.

    Above zero is positive (tumour, for example), 0 is negative, and -1 (any number below zero) is
    unknown. None means that no instance has a label. Training never sees them; they measure how
    well scores localise.
    """
    slide_size: tuple[int, int] | None = None
    """Width and height of level 0."""
    bounds_origin: tuple[int, int] | None = None
    """Upper left corner of the scanned area, for viewers that crop to it."""
    stride: Level0Px | None = None
    """Distance between neighbouring tiles in level-0 pixels; the patch size where not given."""
    tile_px: TilePx | None = None
    """Side of a tile in pixels as the encoder saw it."""
    encoder: EncoderId | None = None
    """What made the features."""
    provenance: Mapping[str, Any] | None = None
    """How the features were made, as JSON values: settings, versions, hashes."""

    def __post_init__(self) -> None:
        if not isinstance(self.slide_id, str) or not self.slide_id:
            raise BagError(f"slide_id is {self.slide_id!r}; expected the slide's name, as text")
        if not _is_storable(self.slide_id):
            raise BagError(f"slide_id is {self.slide_id!r}; expected text that UTF-8 can encode")
        features = _convert_features(self.slide_id, self.features)
        coords = _convert_coords(self.slide_id, self.coords, len(features))
        labels = _convert_labels(self.slide_id, self.labels, len(features))
        encoder = _convert_encoder(self.slide_id, self.encoder)
        converted = {"features": features, "coords": coords, "labels": labels, "encoder": encoder}
        for name, value in converted.items():
            object.__setattr__(self, name, value)
        _check_lengths(self)
        _check_pairs(self)
        _check_provenance(self)
        _warn_of_duplicates(self.slide_id, coords)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        return f"Bag({self.slide_id!r}, {len(self):,} instances x {self.dim})"

    __iter__ = None
    """Not iterable: without this, Python would loop over bags of one instance."""

    def __getitem__(self, index: slice | SupportsIndex | npt.ArrayLike) -> Bag:
        return self.take(index)

    def take(self, index: slice | SupportsIndex | npt.ArrayLike) -> Bag:
        """Return a new bag of some of the instances; ``bag[index]`` is the same.

        Everything that is not per instance, such as the slide's name and size, is kept.

        >>> bag = Bag("s", np.eye(3, dtype=np.float32), [[0, 0], [256, 0], [512, 0]], Level0Px(256))
        >>> bag.take(bag.coords[:, 0] >= 256), bag[0], bag[:2]
        (Bag('s', 2 instances x 3), Bag('s', 1 instances x 3), Bag('s', 2 instances x 3))

        Args:
            index: a slice, a whole number, whole numbers, or a mask with a value per instance.

        Raises:
            InputError: the index selects nothing, or does not fit the bag.
        """
        rows = _select_rows(self, index)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, features=self.features[rows], coords=self.coords[rows], labels=labels)

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return int(self.features.shape[1])

    @property
    def patch_coords(self) -> npt.NDArray[np.float64]:
        """(N, 2), coordinates in patch units, the input of models."""
        return np.asarray(self.coords / float(self.patch_size), dtype=np.float64)

    @property
    def patch_size_px(self) -> Level0Px | None:
        """Side of a tile if its size was set in pixels, without µm; else None.

        None also for bags of other tools that only leave out the resolution.
        """
        cut = self.provenance or {}
        by_pixels = self.mpp is None and "mpp" in cut and cut["mpp"] is None
        return self.patch_size if by_pixels else None

    @property
    def patch_size_um(self) -> Microns | None:
        """Side of a tile on the glass, where the resolution is known."""
        return None if self.mpp is None else to_microns(self.patch_size, self.mpp)


def _select_rows(
    bag: Bag, index: slice | SupportsIndex | npt.ArrayLike
) -> slice | npt.NDArray[Any]:
    """Return the checked rows of an index; a slice stays a slice, so that nothing is copied."""
    rows = np.arange(len(bag))[index] if isinstance(index, slice) else _convert_index(bag, index)
    if len(rows) == 0 or (rows.dtype == np.bool_ and not rows.any()):
        raise InputError(
            f"{bag.slide_id}: the index selects none of {len(bag)} instances; expected at least "
            "one, check the mask or the bounds of the window"
        )
    return index if isinstance(index, slice) else rows


def _convert_index(bag: Bag, index: SupportsIndex | npt.ArrayLike) -> npt.NDArray[Any]:
    rows = np.atleast_1d(_to_array(bag.slide_id, "the index's values", index))  # type: ignore[arg-type]
    count = len(bag)
    if rows.ndim == 1 and rows.size == 0:
        return rows.astype(np.int64)
    if rows.dtype == np.bool_ and rows.shape == (count,):
        return rows
    if np.issubdtype(rows.dtype, np.integer) and rows.ndim == 1:
        if rows.min() >= -count and rows.max() < count:
            return rows
        raise InputError(
            f"{bag.slide_id}: the index runs from {rows.min()} to {rows.max()}; expected whole "
            f"numbers from {-count} to {count - 1}, as the bag has {count} instances"
        )
    raise InputError(
        f"{bag.slide_id}: the index is {rows.dtype} of shape {rows.shape}; expected a slice, whole "
        f"numbers, or a mask of shape ({count},)"
    )


def _to_array(slide_id: str, name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors with gradients
        raise BagError(f"{slide_id}: {name} do not make an array ({error})") from error


def _convert_features(slide_id: str, values: npt.ArrayLike) -> npt.NDArray[np.floating]:
    features = _to_array(slide_id, "features", values)
    if features.ndim != 2:
        raise BagError(
            f"{slide_id}: features have shape {features.shape}; expected (N, D), "
            "one row per instance"
        )
    if not np.issubdtype(features.dtype, np.floating):
        raise BagError(
            f"{slide_id}: features are {features.dtype}; expected float16 or float32, "
            "convert them with .astype('float32')"
        )
    if features.shape[0] == 0 or features.shape[1] == 0:
        raise BagError(
            f"{slide_id}: the bag is empty (features have shape {features.shape}); expected at "
            "least one instance, leave slides without tissue out of the cohort"
        )
    if features.dtype not in (np.float16, np.float32):
        with np.errstate(over="ignore"):  # overflow gives infinity, which is reported below
            features = features.astype(np.float32)
    features = np.ascontiguousarray(features)
    if not _is_all_finite(features):
        rows = np.flatnonzero(~np.isfinite(features).all(axis=1))
        raise BagError(
            f"{slide_id}: features of {len(rows)} of {len(features)} instances hold NaN or "
            f"infinity (first: row {rows[0]}); expected finite values, extract this slide again"
        )
    return features


def _is_all_finite(values: npt.NDArray[np.floating]) -> bool:
    """Whether no value is infinite or missing."""
    if values.dtype != np.float16:
        return bool(np.isfinite(values).all())
    # numpy converts each float16 to float32 first; checking the exponents takes a seventh of that.
    bits, highest = values.reshape(-1).view(np.uint16), np.uint16(0x7C00)
    starts = range(0, bits.size, _CHUNK_SIZE)
    return all((bits[i : i + _CHUNK_SIZE] & highest).max() < highest for i in starts)


def _convert_coords(
    slide_id: str, values: npt.ArrayLike | None, count: int
) -> npt.NDArray[np.number]:
    if values is None:
        raise BagError(
            f"{slide_id}: there are no coordinates; expected ({count}, 2) level-0 pixels, "
            "take them from the file the tiles were cut with"
        )
    coords = _to_array(slide_id, "coordinates", values)
    if coords.shape != (count, 2):
        raise BagError(
            f"{slide_id}: coordinates have shape {coords.shape} beside {count} feature rows; "
            f"expected ({count}, 2), x and y of each instance"
        )
    if np.issubdtype(coords.dtype, np.integer):
        _check_coord_range(slide_id, int(coords.min()), int(coords.max()))
        return np.ascontiguousarray(coords, dtype=np.int64)
    if not np.issubdtype(coords.dtype, np.floating):
        raise BagError(f"{slide_id}: coordinates are {coords.dtype}; expected whole numbers")
    if not np.isfinite(coords).all():
        raise BagError(f"{slide_id}: coordinates hold NaN or infinity; expected level-0 pixels")
    _check_coord_range(slide_id, float(coords.min()), float(coords.max()))
    whole = bool((coords == np.round(coords)).all())
    return np.ascontiguousarray(coords, dtype=np.int64 if whole else np.float64)


def _check_coord_range(slide_id: str, lowest: float, highest: float) -> None:
    farthest = highest if highest > -lowest else lowest
    if abs(farthest) >= _MAX_PIXELS:
        raise BagError(
            f"{slide_id}: coordinates reach {farthest:g}; expected level-0 pixels, no slide is "
            "that wide: look for wrong values in the file"
        )


def _convert_labels(
    slide_id: str, values: npt.ArrayLike | None, count: int
) -> npt.NDArray[np.integer] | None:
    if values is None:
        return None
    labels = _to_array(slide_id, "labels", values)
    if labels.shape != (count,):
        raise BagError(
            f"{slide_id}: labels have shape {labels.shape}; expected ({count},), one per instance"
        )
    if not np.issubdtype(labels.dtype, np.integer) and labels.dtype != np.bool_:
        raise BagError(f"{slide_id}: labels are {labels.dtype}; expected whole numbers")
    return labels.astype(np.int64)


def _check_lengths(bag: Bag) -> None:
    for name in ("patch_size", "mpp", "stride", "tile_px"):
        value = getattr(bag, name)
        if value is not None and not _is_length(value):
            raise BagError(
                f"{bag.slide_id}: {name} is {value!r}; expected a number above zero "
                f"({_MIN_LENGTH:g} to {_MAX_LENGTH:g})"
            )
    if bag.patch_size is None:
        raise BagError(
            f"{bag.slide_id}: patch_size is missing; expected a tile's side in level-0 pixels"
        )


def _check_pairs(bag: Bag) -> None:
    for name in ("slide_size", "bounds_origin"):
        value = getattr(bag, name)
        if value is not None and not _is_pair(value):
            raise BagError(f"{bag.slide_id}: {name} is {value!r}; expected two whole numbers")
        if value is not None and max(abs(int(number)) for number in value) >= _MAX_PIXELS:
            raise BagError(f"{bag.slide_id}: {name} is {value!r}; expected level-0 pixels")


def _check_provenance(bag: Bag) -> None:
    if bag.provenance is None:
        return
    problem = ""
    try:
        if json.loads(json.dumps(dict(bag.provenance), allow_nan=False)) != bag.provenance:
            problem = "is changed by JSON; expected keys that are text"
    except RecursionError:
        problem = "is nested too deeply; expected a few levels"
    except (TypeError, ValueError) as error:
        problem = f"cannot be written as JSON ({error})"
    if problem:
        raise BagError(f"{bag.slide_id}: provenance {problem}")


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(number, numbers.Integral) for number in value)
    )


def _convert_encoder(slide_id: str, value: tuple[str, str | None] | None) -> EncoderId | None:
    if value is None:
        return None
    is_pair = isinstance(value, tuple) and len(value) in (1, 2)
    encoder = EncoderId(*value) if is_pair else EncoderId("")
    texts = [encoder.name] if encoder.hash is None else list(encoder)
    if not all(isinstance(text, str) and text and _is_storable(text) for text in texts):
        raise BagError(f"{slide_id}: encoder is {value!r}; expected EncoderId(name, hash), as text")
    return encoder


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_length(value: object) -> bool:
    return isinstance(value, numbers.Real) and _MIN_LENGTH <= float(value) <= _MAX_LENGTH


def _warn_of_duplicates(slide_id: str, coords: npt.NDArray[np.number]) -> None:
    in_order = coords[np.lexsort((coords[:, 1], coords[:, 0]))]
    duplicates = int((in_order[1:] == in_order[:-1]).all(axis=1).sum())
    if duplicates:
        warnings.warn(
            f"{slide_id}: {duplicates} of {len(coords)} instances repeat another's coordinates; "
            "the bag may mix tiles of several slides or resolutions",
            BagWarning,
            stacklevel=4,
        )
