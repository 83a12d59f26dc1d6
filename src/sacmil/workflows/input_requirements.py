"""Requirements of a model for its bags, read from its card, and bags extracted to meet them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sacmil.bag import TILE_SIZE_TOLERANCE, Bag
from sacmil.card import Card
from sacmil.deploy.load import LoadedModel
from sacmil.encoders import Encoder, list_encoders, list_families, load_encoder
from sacmil.environment import count_gpus
from sacmil.errors import EncoderError, InputError, ModelFolderError, OptionError
from sacmil.slides.tissue import TISSUE_MODES
from sacmil.workflows.inputs import BagSettings, WorkflowCallbacks

if TYPE_CHECKING:
    from sacmil.extraction import ExtractionSettings


class InputCheck(NamedTuple):
    """Differences between a bag and the bags a model was trained on."""

    problems: list[str]
    """Each a clause: what was found, what was expected."""
    unknown: list[str]
    """Properties that could not be compared."""


@dataclass(frozen=True, kw_only=True)
class InputRequirements:
    """Properties of the bags a model was trained on; None if its card does not state them."""

    encoder: str | None = None
    encoder_hash: str | None = None
    dim: int | None = None
    """Width of a feature vector."""
    patch_um: float | None = None
    """Side of a tile on the glass."""
    patch_px: int | None = None
    """Side of a tile in pixels of the image, if its µm per pixel is unknown."""
    tile_px: int | None = None
    """Side of a tile in pixels at the resolution it was cut at."""
    tissue: str | None = None
    """How tissue was found: auto, detect or all."""

    @classmethod
    def from_card(cls, card: Card, name: str) -> Self:
        """Return the requirements in a model's card.

        Args:
            card: from read_card.
            name: of the model, for messages.
        """
        known = {field.name: card.bags.get(field.name) for field in fields(cls)}
        if known["dim"] is None:
            known["dim"] = card.options.get("in_dim")
        for key, value in known.items():
            if value is not None and not _is_valid_value(key, value):
                raise ModelFolderError(
                    f"{name}: its card has the invalid value {value!r} for {key}; copy the folder "
                    "again"
                )
        return cls(**known)

    @classmethod
    def merge(cls, requirements: Mapping[str, InputRequirements]) -> InputRequirements:
        """Return the common requirements of several models; reject models that need different bags.

        Args:
            requirements: by the model's name.
        """
        known: dict[str, Any] = {}
        for field in fields(cls):
            values = {
                name: value
                for name, need in requirements.items()
                if (value := getattr(need, field.name)) is not None
            }
            if field.name == "tissue" and len(set(values.values())) > 1:
                values = {}  # auto: bags do not show how their tissue was found
            if len(set(values.values())) > 1:
                listed = "; ".join(f"{name} {value}" for name, value in values.items())
                raise ModelFolderError(
                    f"the models need bags with different {field.name}: {listed}; use one command "
                    "for each, with another `out`"
                )
            known[field.name] = next(iter(values.values()), None)
        return cls(**known)

    @classmethod
    def from_ensembles(cls, ensembles: Iterable[LoadedModel]) -> InputRequirements:
        """Return the common requirements of all members of ensembles."""
        return cls.merge(
            {
                f"{one.name} ({number})" if number else one.name: cls.from_card(
                    member.card, str(one.path)
                )
                for one in ensembles
                for number, member in enumerate(one.members)
            }
        )

    @property
    def mpp(self) -> float | None:
        """Microns per pixel of the tiles."""
        if self.patch_um is None or self.tile_px is None:
            return None
        return float(f"{self.patch_um / self.tile_px:.6g}")  # a product of rounded factors

    def list_missing_for_slides(self) -> list[str]:
        """Return the properties that are missing to make bags of slides."""
        sizes = [] if self.patch_px else [("patch_um", "size of a tile in µm")]
        wanted = [("encoder", "encoder"), *sizes, ("tile_px", "size of a tile in pixels")]
        return [words for name, words in wanted if getattr(self, name) is None]

    def check(self, bag: Bag) -> InputCheck:
        """Compare a bag with the requirements."""
        wrong, unknown = [], []
        if self.has_other_dim(bag):
            wrong.append(f"its features have {bag.dim} numbers, the model takes {self.dim}")
        if self.encoder is None or bag.encoder is None:
            unknown.append("encoder")
        else:
            wrong += self.check_encoder(bag.encoder.name, bag.encoder.hash)
        found = _describe_tiles(bag.patch_size_um, bag.patch_size_px)
        expected = _describe_tiles(self.patch_um, self.patch_px)
        if not found or not expected:
            unknown.append("size of a tile in µm")
        elif found != expected and not _are_close(bag.patch_size_um, self.patch_um):
            wrong.append(f"its tiles are {found}, the model's {expected}")
        return InputCheck(wrong, unknown)

    def require(
        self, bag: Bag, name: object, *, allow_mismatch: bool, others: Sequence[str] = ()
    ) -> InputCheck:
        """Compare a bag as ``check`` does, and reject one that does not meet the requirements.

        Args:
            bag: to compare.
            name: of the bag, for the message.
            allow_mismatch: accept all differences but that of dimensions.
            others: problems that the caller found.
        """
        found = self.check(bag)
        found.problems.extend(others)
        if found.problems and (self.has_other_dim(bag) or not allow_mismatch):
            raise InputError(f"{name}: {'; '.join(found.problems)}; {self.fix_hint(bag)}")
        return found

    def has_other_dim(self, bag: Bag) -> bool:
        """Whether the model cannot run on the bag."""
        return self.dim not in (None, bag.dim)

    def fix_hint(self, bag: Bag) -> str:
        """Return what to do about a bag that does not meet the requirements."""
        hint = self.extraction_hint()
        if self.has_other_dim(bag):
            return hint
        return f"{hint}; or use `allow_mismatch=True` to predict anyway"

    def extraction_hint(self) -> str:
        """Return how to make a bag that meets the requirements."""
        if self.encoder and not _is_known_encoder(self.encoder):
            return f"give a bag made like the model's, with features of {self.encoder}"
        encoder = f"the encoder {self.encoder}" if self.encoder else "the model's encoder"
        size = f", tiles of {self.tile_px} pixels at {self.mpp:g} µm per pixel" if self.mpp else ""
        if self.patch_px:
            size = f", tiles of {self.patch_px} pixels of the image (mpp none)"
        return f"extract the slide again with {encoder}{size}"

    def check_encoder(self, name: str, digest: str | None) -> list[str]:
        """Return how an encoder differs from the model's."""
        if self.encoder not in (None, name):
            return [f"its encoder is {name}, the model's {self.encoder}"]
        if self.encoder and self.encoder_hash and digest and digest != self.encoder_hash:
            return [
                f"its {name} has other weights ({digest}) than the model's ({self.encoder_hash})"
            ]
        return []


def _describe_tiles(um: float | None, px: float | None) -> str:
    """Describe the width of tiles; empty if unknown."""
    if px is not None:
        return f"{px:g} pixels of an image of unknown µm per pixel"
    return "" if um is None else f"{um:.4g} µm wide"


def _are_close(found: float | None, expected: float | None) -> bool:
    """Whether two sizes in µm are the same; a size in pixels is None here."""
    if found is None or expected is None:
        return False
    return abs(found / expected - 1) <= TILE_SIZE_TOLERANCE


def _is_known_encoder(encoder: str) -> bool:
    """Whether sacmil extract accepts the name."""
    return encoder in list_encoders() or encoder.startswith(tuple(list_families()))


def _is_valid_value(key: str, value: object) -> bool:
    if key == "tissue":
        return value in TISSUE_MODES
    if key in ("encoder", "encoder_hash"):
        return isinstance(value, str) and bool(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < math.inf and (key == "patch_um" or isinstance(value, int))


class ExtractedBags(NamedTuple):
    """Bags and failures by slide name."""

    bags: dict[str, Path]
    failures: dict[str, str]
    """Reasons why there is no bag."""


def extract_missing(
    slides: Mapping[str, Path],
    out: Path,
    requirements: InputRequirements,
    settings: BagSettings,
    callbacks: WorkflowCallbacks,
) -> ExtractedBags:
    """Extract slides into a folder; skip slides that are done.

    Args:
        slides: files by name.
        out: see extraction/slide_request.py for its contents.
        requirements: bags that the models accept.
        settings: encoder and resolution are used.
        callbacks: progress.
    """
    from sacmil.extraction import extract_slides

    chosen = _make_extraction_settings(slides, requirements, settings)
    encoders, paths = [_load_required_encoder(requirements, settings)], list(slides.values())
    with callbacks.show_extraction(len(slides)) as progress:
        rows = extract_slides(paths, out, encoders=encoders, settings=chosen, progress=progress)
    found = dict(zip(slides, rows, strict=True))
    return ExtractedBags(
        {name: out / row.bag for name, row in found.items() if row.status != "failed"},
        {name: row.reason for name, row in found.items() if row.status == "failed"},
    )


def _make_extraction_settings(
    slides: Mapping[str, Path], requirements: InputRequirements, settings: BagSettings
) -> ExtractionSettings:
    from sacmil.extraction import ExtractionSettings
    from sacmil.slides.resolution import SlideResolutions
    from sacmil.slides.tiling import TileSpec

    if missing := requirements.list_missing_for_slides():
        raise ModelFolderError(
            f"the model's card does not name the {' or the '.join(missing)} it was trained with, "
            f"so {next(iter(slides.values()))} cannot be tiled for it; extract it with the "
            "encoder, resolution and tile size of the model's bags, and give the bag"
        )
    slide_mpp = settings.slide_mpp
    if requirements.patch_px is not None and slide_mpp:
        raise OptionError(
            "`slide_mpp`: the model's tiles are counted in pixels, not µm; leave it out"
        )
    size = requirements.patch_px or requirements.tile_px
    assert size is not None
    return ExtractionSettings(
        tiles=TileSpec(mpp=None if requirements.patch_px else requirements.mpp, patch_size=size),
        tissue_mode=requirements.tissue or "auto",
        resolutions=SlideResolutions.parse(slide_mpp) if slide_mpp else SlideResolutions(),
    )


def _load_required_encoder(requirements: InputRequirements, settings: BagSettings) -> Encoder:
    name = settings.encoder or requirements.encoder
    assert name is not None
    device = settings.device  # an encoder may not need torch
    if device == "auto":
        device = "cuda:0" if count_gpus() else "cpu"
    weights, download = settings.encoder_weights, settings.download
    try:
        loaded = load_encoder(name, weights=weights, device=device, download=download)
    except EncoderError as error:  # it names an argument that has another name here
        raise EncoderError(str(error).replace("`weights`", "`encoder_weights`")) from error
    wrong = requirements.check_encoder(loaded.card.name, loaded.hash)
    if wrong and not settings.allow_mismatch:
        raise EncoderError(
            f"{name}: {wrong[0]}; give the model's encoder by `encoder` or `encoder_weights`, "
            "or use `allow_mismatch=True` to use this one anyway"
        )
    return loaded
