"""A cohort of synthetic slides: labels do not depend on counts, three slides have artefacts."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sacmil.atomic import write_file
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.errors import ConfigError, require_extra
from sacmil.synthetic.slides.layout import CLASSES, MPP, LayoutSettings, SlideLayout, make_layout
from sacmil.synthetic.slides.painter import draw_slide
from sacmil.synthetic.slides.texture import Pixels, Stain, make_soft_noise

Artefact = Literal["none", "pen mark", "no tissue", "truncated"]

_OUTLINE_COLOR = [200, 30, 30]
_PEN_COLOR = np.array([36, 128, 84])
_TRUNCATED_SHARE = 0.35
"""Share of a truncated file that is left."""
_LEVELS = 3
_TILE = 256


@dataclass(frozen=True, kw_only=True)
class SyntheticSlide:
    """The description of a synthetic slide; small to send to another process."""

    slide_id: str
    patient_id: str
    label: int
    """Index into CLASSES."""
    seeds: tuple[int, int]
    """The cohort's seed and the slide's number: they determine every pixel."""
    artefact: Artefact = "none"
    settings: LayoutSettings = field(default_factory=LayoutSettings)

    @property
    def file_name(self) -> str:
        """File name of the slide."""
        return f"{self.slide_id}.tif"

    def make_layout(self) -> SlideLayout:
        """Return the layout of the slide."""
        return make_layout(self.label, np.random.default_rng([*self.seeds, 0]), self.settings)


def make_slide_cohort(
    slides: int, seed: int = 0, *, settings: LayoutSettings | None = None
) -> tuple[SyntheticSlide, ...]:
    """Return slides with tissue, half of each label, then one without tissue and a truncated one.

    The first of them has a pen mark, which does no harm.

    Args:
        slides: number of slides with tissue.
        seed: the same seed gives the same cohort.
        settings: of every slide.
    """
    if slides < 4 or slides % 2 or seed < 0:
        raise ConfigError(
            f"slides is {slides} and seed {seed}; expected an even number of slides, 4 or more, "
            "and a seed of 0 or more"
        )
    labels = np.random.default_rng(seed).permutation(np.arange(slides) % len(CLASSES)).tolist()
    intact: list[Artefact] = ["none"] * (slides - 1)
    artefacts: list[Artefact] = ["pen mark", *intact, "no tissue", "truncated"]
    digits = len(str(len(artefacts)))
    return tuple(
        SyntheticSlide(
            slide_id=f"slide-{number:0{digits}}",
            patient_id=f"patient-{number:0{digits}}",
            label=label,
            seeds=(seed, number),
            artefact=artefact,
            settings=settings or LayoutSettings(),
        )
        for number, (label, artefact) in enumerate(
            zip([*labels, 0, 1], artefacts, strict=True), start=1
        )
    )


def make_cohort(slides: tuple[SyntheticSlide, ...]) -> Cohort:
    """Return the slides with their labels as a cohort."""
    rows = (LabeledSlide(slide.slide_id, slide.patient_id, slide.label) for slide in slides)
    return Cohort(tuple(rows), CLASSES)


def write_slide(slide: SyntheticSlide, slides: Path, truth: Path) -> None:
    """Draw a slide and write it, and the outlines of its tumour clusters as GeoJSON.

    Args:
        slide: to draw.
        slides: folder of the pyramid.
        truth: folder of the outlines; a slide without tissue has none.
    """
    random = np.random.default_rng([*slide.seeds, 1])
    if slide.artefact == "no tissue":
        pixels = draw_empty_slide(slide.settings, random)
    else:
        layout = slide.make_layout()
        pixels = draw_slide(layout, random)
        _write_truth(truth / f"{slide.slide_id}.geojson", layout)
    if slide.artefact == "pen mark":
        pixels = add_pen_mark(pixels, random)
    file = encode_pyramid(pixels, MPP)
    is_truncated = slide.artefact == "truncated"
    write_file(slides / slide.file_name, truncate_file(file) if is_truncated else file)


def _write_truth(path: Path, layout: SlideLayout) -> None:
    """Write annotations for QuPath, each cluster as a polygon in level-0 pixels."""
    features = [
        {
            "type": "Feature",
            "geometry": {
                "type": "Polygon",
                "coordinates": [np.round([*cluster.outline, cluster.outline[0]], 1).tolist()],
            },
            "properties": {
                "objectType": "annotation",
                "classification": {"name": "Tumor", "color": _OUTLINE_COLOR},
            },
        }
        for cluster in layout.clusters
    ]
    collection = {"type": "FeatureCollection", "features": features}
    write_file(path, json.dumps(collection) + "\n")


# --- artefacts of slide archives


def add_pen_mark(pixels: Pixels, random: np.random.Generator) -> Pixels:
    """Add a stroke of a green felt-tip pen around a corner of the tissue, as on real slides."""
    with require_extra("slides", "drawing slides"):
        from PIL import Image, ImageDraw, ImageFilter
    height, width, _ = pixels.shape
    small = Image.new("L", (width // 4, height // 4))
    along = np.linspace(0, 1, 40)
    x = width / 4 * (0.06 + 0.3 * along)
    y = height / 4 * (0.42 - 0.36 * along**1.4) + 3 * np.cumsum(random.normal(0, 0.5, 40))
    points = list(zip(x.tolist(), y.tolist(), strict=True))
    ImageDraw.Draw(small).line(points, fill=255, width=width // 48, joint="curve")
    stroke = small.filter(ImageFilter.GaussianBlur(1.5)).resize((width, height))
    cover = 0.9 * np.asarray(stroke, np.float32)[..., None] / 255
    # most of the tissue is hidden, some of its brightness remains visible
    brightness = 0.75 + 0.25 * pixels.mean(axis=2, keepdims=True, dtype=np.float32) / 255
    return np.asarray(pixels * (1 - cover) + _PEN_COLOR * brightness * cover, np.uint8)


def draw_empty_slide(settings: LayoutSettings, random: np.random.Generator) -> Pixels:
    """Draw bare glass that is not quite clean."""
    smear = 0.02 + 0.012 * make_soft_noise(random, settings.size, 300)
    return Stain.sample(random).to_rgb(smear * 0.2, smear)


def truncate_file(file: bytes) -> bytes:
    """Return the beginning of a file, as a full disk or an interrupted copy leaves it."""
    return file[: round(_TRUNCATED_SHARE * len(file))]


# --- files as scanners write them


def encode_pyramid(pixels: Pixels, mpp: float) -> bytes:
    """Return the bytes of a TIFF with levels of full, half and quarter size.

    Args:
        pixels: of level 0.
        mpp: microns per pixel of level 0.
    """
    with require_extra("slides", "drawing slides"):
        import tifffile
        from PIL import Image
    options: dict[str, Any] = {
        "tile": (_TILE, _TILE),
        "photometric": "rgb",
        "compression": "jpeg",
        "compressionargs": {"level": 88, "outcolorspace": "ycbcr"},
        "subsampling": (2, 2),
        "metadata": None,
        "software": False,
        "resolutionunit": "CENTIMETER",
    }
    buffer = io.BytesIO()
    level = Image.fromarray(pixels)
    with tifffile.TiffWriter(buffer) as file:
        for number in range(_LEVELS):
            kind, per_cm = min(number, 1), 10_000 / (mpp * 2**number)
            file.write(np.asarray(level), subfiletype=kind, resolution=(per_cm, per_cm), **options)
            level = level.reduce(2)
    return buffer.getvalue()
