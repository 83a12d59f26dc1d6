"""A cohort of drawn slides: labels that counts do not betray, and three slides with a mishap."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sacmil.atomic import whole_file
from sacmil.cohorts.drawn.layout import CLASSES, MPP, Amounts, Layout, make_layout
from sacmil.cohorts.drawn.mishap import Mishap, empty, marked, truncated
from sacmil.cohorts.drawn.picture import draw
from sacmil.cohorts.drawn.pyramid import pyramid
from sacmil.cohorts.table import Cohort, LabelledSlide
from sacmil.errors import ConfigError

_OUTLINE = [200, 30, 30]


@dataclass(frozen=True, kw_only=True)
class DrawnSlide:
    """A slide that can be drawn; small to send to another process."""

    slide_id: str
    patient_id: str
    label: int
    """Index into CLASSES."""
    entropy: tuple[int, int]
    """The cohort's seed and the slide's number: they decide about every pixel."""
    mishap: Mishap = "none"
    amounts: Amounts = field(default_factory=Amounts)

    @property
    def file_name(self) -> str:
        """Of the slide."""
        return f"{self.slide_id}.tif"

    def layout(self) -> Layout:
        """What is where on it."""
        return make_layout(self.label, np.random.default_rng([*self.entropy, 0]), self.amounts)


def drawn_cohort(
    slides: int, seed: int = 0, *, amounts: Amounts | None = None
) -> tuple[DrawnSlide, ...]:
    """Slides with tissue, half of each label, then one without tissue and one that is truncated.

    The first of them has a pen mark, which harms nothing.

    Args:
        slides: how many have tissue.
        seed: the same seed gives the same cohort.
        amounts: what is on every slide.
    """
    if slides < 4 or slides % 2 or seed < 0:
        raise ConfigError(
            f"slides is {slides} and seed {seed}; expected an even number of slides, 4 or more, "
            "and a seed of 0 or more"
        )
    labels = np.random.default_rng(seed).permutation(np.arange(slides) % len(CLASSES)).tolist()
    sound: list[Mishap] = ["none"] * (slides - 1)
    mishaps: list[Mishap] = ["pen mark", *sound, "no tissue", "truncated"]
    digits = len(str(len(mishaps)))
    return tuple(
        DrawnSlide(
            slide_id=f"slide-{number:0{digits}}",
            patient_id=f"patient-{number:0{digits}}",
            label=label,
            entropy=(seed, number),
            mishap=mishap,
            amounts=amounts or Amounts(),
        )
        for number, (label, mishap) in enumerate(
            zip([*labels, 0, 1], mishaps, strict=True), start=1
        )
    )


def table_of(slides: tuple[DrawnSlide, ...]) -> Cohort:
    """The slides with their labels, as tables have them."""
    rows = (LabelledSlide(slide.slide_id, slide.patient_id, slide.label) for slide in slides)
    return Cohort(tuple(rows), CLASSES)


def write_slide(slide: DrawnSlide, slides: Path, truth: Path) -> None:
    """Draw a slide and write it, and the outlines of its tumour nests as GeoJSON.

    Args:
        slide: which.
        slides: folder of the pyramid.
        truth: folder of the outlines; a slide without tissue has none.
    """
    random = np.random.default_rng([*slide.entropy, 1])
    if slide.mishap == "no tissue":
        pixels = empty(slide.amounts, random)
    else:
        layout = slide.layout()
        pixels = draw(layout, random)
        _write_truth(truth / f"{slide.slide_id}.geojson", layout)
    if slide.mishap == "pen mark":
        pixels = marked(pixels, random)
    file = pyramid(pixels, MPP)
    with whole_file(slides / slide.file_name) as partial:
        partial.write_bytes(truncated(file) if slide.mishap == "truncated" else file)


def _write_truth(path: Path, layout: Layout) -> None:
    """Annotations QuPath opens, each nest a polygon in level-0 pixels."""
    features = [
        {
            "type": "Feature",
            "geometry": {
                "type": "Polygon",
                "coordinates": [np.round([*nest.outline, nest.outline[0]], 1).tolist()],
            },
            "properties": {
                "objectType": "annotation",
                "classification": {"name": "Tumor", "color": _OUTLINE},
            },
        }
        for nest in layout.nests
    ]
    with whole_file(path) as partial:
        whole = {"type": "FeatureCollection", "features": features}
        partial.write_text(json.dumps(whole) + "\n", encoding="utf-8")
