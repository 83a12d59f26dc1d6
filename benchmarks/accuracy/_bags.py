"""Which bags a job is about: made from a seed, or read from the file of real features.

A source in JSON is one of::

    {"kind": "synthetic", "task": "cluster", "settings": {"contrast": 3}, "seed": 0, "dim": 64,
     "pieces": [["train", 200, 1000, 4000], ["test", 100, 1000, 4000]], "outlines": ""}
    {"kind": "colon", "encoder": "lite0", "made": "1f…"}  also breast; lite0_mid and rgb
    {"kind": "idc", "encoder": "lite0", "made": "1f…", "window": 10, "step": 5, "fewest": 25}

``made`` is the hash of what features were made from: other features are other jobs.

Bags of a source lie one after the other in large arrays, which take a second to load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from benchmarks.accuracy._job import Source
from sacmil.atomic import atomic_write
from sacmil.errors import SacMILError
from sacmil.evaluation.metrics import auc
from sacmil.synthetic.bags import (
    PRESETS,
    Polygons,
    SyntheticBagSettings,
    compute_oracle_scores,
    make_labeled_bag,
    read_shapes,
)

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class Bags:
    """Labelled bags with the truth of their instances, where there is any."""

    features: npt.NDArray[np.float16]
    """Of all bags together."""
    coords: npt.NDArray[np.float64]
    """In patch units."""
    truth: npt.NDArray[np.int8]
    """1, 0, or -1 where nobody knows."""
    starts: npt.NDArray[np.int64]
    """Where each bag begins, and the end."""
    labels: npt.NDArray[np.int64]
    units: npt.NDArray[np.str_]
    """Names of the bags."""
    groups: npt.NDArray[np.str_]
    """What must not be divided: the slide a window is of; a piece of a synthetic cohort."""
    kinds: npt.NDArray[np.str_]
    """bag, or for IDC: train (windows that overlap), test (windows that do not), whole (slides)."""
    ceiling: float = float("nan")
    """The AUC of an oracle on the test piece of a synthetic cohort."""

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, bag: int) -> slice:
        """Where a bag's instances stand."""
        return slice(int(self.starts[bag]), int(self.starts[bag + 1]))


def load_bags(source: Source, features: Path | None, outlines: Path | None = None) -> Bags:
    """The bags of a source.

    Args:
        source: in JSON.
        features: the folder ``features.py`` filled, for real sets.
        outlines: shapes of lesions, where the source asks for them.
    """
    if source["kind"] == "synthetic":
        return _synthetic(source, outlines)
    bags = _real(source, features_file(source["kind"], features))
    return windows(bags, source) if source["kind"] == "idc" else bags


def save_bags(path: Path, bags: Bags) -> None:
    """Write bags so that every worker can read them: features apart, as nobody copies them then."""
    others = {name: value for name, value in vars(bags).items() if name != "features"}
    with atomic_write(_features_beside(path)) as partial, partial.open("wb") as stream:
        np.save(stream, bags.features)
    with atomic_write(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **others)


def read_bags(path: Path) -> Bags:
    """Read them back."""
    with np.load(path) as arrays:
        held: dict[str, Any] = dict(arrays)
    held["ceiling"] = float(held["ceiling"])
    return Bags(features=np.load(_features_beside(path), mmap_mode="c"), **held)


def _features_beside(path: Path) -> Path:
    return path.with_suffix(".features.npy")


# --- synthetic ------------------------------------------------------------------------------------


def _synthetic(source: Source, outlines: Path | None) -> Bags:
    drawn = list(_drawn(source, outlines))
    bags, labels, pieces = zip(*drawn, strict=True)
    lengths = [bag.features.shape[0] for bag in bags]
    test = [place for place, piece in enumerate(pieces) if piece == "test"]
    scores = [_oracle(source, outlines, bags[place]) for place in test]
    return Bags(
        features=np.concatenate([bag.features.astype(np.float16) for bag in bags]),
        coords=np.concatenate([bag.patch_coords for bag in bags]),
        truth=np.concatenate([bag.labels.astype(np.int8) for bag in bags]),
        starts=_starts(lengths),
        labels=np.array(labels),
        units=np.array([bag.slide_id for bag in bags]),
        groups=np.array(pieces),
        kinds=np.full(len(bags), "bag"),
        ceiling=auc([labels[place] for place in test], scores) if test else float("nan"),
    )


def _drawn(source: Source, outlines: Path | None) -> Iterator[tuple[Any, int, str]]:
    """Slide after slide; numbers count on over the pieces, so that no slide is in two."""
    number = 0
    for name, count, few, many in source["pieces"]:
        settings = _settings(source, (few, many), outlines)
        for _ in range(count):
            bag, label = make_labeled_bag(settings, source["seed"], number)
            yield bag, label, name
            number += 1


def _settings(
    source: Source, instances: tuple[int, int], outlines: Path | None
) -> SyntheticBagSettings:
    given = {key: _tuples(value) for key, value in source["settings"].items()}
    if source.get("outlines"):
        given["outlines"] = _shapes(outlines)
    task = type(PRESETS[source["task"]]["medium"])(**given)
    return SyntheticBagSettings(task=task, instances=instances, dim=source["dim"])


@cache
def _shapes(outlines: Path | None) -> Polygons:
    if outlines is None:
        raise SacMILError("real outlines need --outlines FILE, such as camelyon16-tumours.json.gz")
    return read_shapes(outlines)


def _oracle(source: Source, outlines: Path | None, bag: Any) -> float:
    settings = _settings(source, (20, 20), outlines)
    scores = compute_oracle_scores(bag, settings, source["seed"])
    return float(scores[1] - scores[0])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


# --- real -----------------------------------------------------------------------------------------


def features_file(kind: str, features: Path | None) -> Path:
    """Where the features of a set are."""
    if features is None or not (features / f"{kind}.h5").is_file():
        raise SacMILError(
            f"{kind} needs its features, found none in {features}; make them with features.py and "
            "give their folder as --features"
        )
    return features / f"{kind}.h5"


def features_hash(kind: str, encoder: str, features: Path | None) -> str:
    """Of the features of a set; empty where there are none."""
    if features is None or not (features / f"{kind}.h5").is_file():
        return ""
    with h5py.File(features / f"{kind}.h5") as file:
        return str(file["lite0" if encoder == "rgb" else encoder].attrs["hash"])


def _real(source: Source, file: Path) -> Bags:
    found = features_hash(source["kind"], source["encoder"], file.parent)
    if found != source["made"]:
        raise SacMILError(f"{file}: holds features {found}, the job is about {source['made']}")
    with h5py.File(file) as group:
        names = group["names"][()].astype(str)
        return Bags(
            features=_features(group, source["encoder"]),
            coords=group["coords"][()].astype(np.float64) / group.attrs["patch_px"],
            truth=group["truth"][()],
            starts=group["starts"][()],
            labels=group["labels"][()],
            units=names,
            groups=names,
            kinds=np.full(len(names), "bag"),
        )


def _features(group: Any, encoder: str) -> npt.NDArray[np.float16]:
    if encoder == "rgb":  # grey levels as numbers around one
        colours: npt.NDArray[np.float16] = ((group["rgb"][()] - 128.0) / 64.0).astype(np.float16)
        return colours
    found: npt.NDArray[np.float16] = group[encoder][()]
    return found


def windows(slides: Bags, source: Source) -> Bags:
    """Squares of patches of whole slides as bags, and the slides themselves.

    Windows that train overlap by as much as the step says; those that choose and test do not.
    A window with fewer patches than ``fewest`` is left out. Label 1: any patch is positive.
    """
    side = int(source["window"])
    chosen: list[tuple[str, str, npt.NDArray[np.int64]]] = []
    for slide, name in enumerate(slides.units.tolist()):
        rows = np.arange(*slides.slice(slide).indices(len(slides.features))[:2])
        places = np.rint(slides.coords[rows] - slides.coords[rows].min(0)).astype(np.int64)
        for kind, step in (("train", int(source["step"])), ("test", side)):
            chosen += [
                (f"{name}/{x}/{y}/{kind}", name, rows[inside])
                for x, y, inside in _squares(places, side, step)
                if inside.sum() >= int(source["fewest"])
            ]
        chosen.append((name, name, rows))
    units, groups, taken = zip(*chosen, strict=True)
    order = np.concatenate(taken)
    truth = slides.truth[order]
    starts = _starts([len(rows) for rows in taken])
    return Bags(
        features=slides.features[order],
        coords=slides.coords[order],
        truth=truth,
        starts=starts,
        labels=np.array([int((slides.truth[rows] > 0).any()) for rows in taken]),
        units=np.array(units),
        groups=np.array(groups),
        kinds=np.array([unit.split("/")[-1] if "/" in unit else "whole" for unit in units]),
    )


def _squares(
    places: npt.NDArray[np.int64], side: int, step: int
) -> Iterator[tuple[int, int, npt.NDArray[np.bool_]]]:
    across, down = places.max(0) + 1
    for x in range(0, max(1, across - side + step), step):
        for y in range(0, max(1, down - side + step), step):
            corner = np.array([x, y])
            yield x, y, np.all((places >= corner) & (places < corner + side), axis=1)


def _starts(lengths: list[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])
