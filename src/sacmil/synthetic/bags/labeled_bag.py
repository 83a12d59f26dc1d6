"""One synthetic slide, made from the settings, the cohort's seed and its own number alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sacmil.bag import Bag, EncoderId
from sacmil.cohorts.cohort import LabeledSlide
from sacmil.errors import ConfigError
from sacmil.synthetic.bags.task import CellKinds, Positions, SyntheticTask
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.units import Level0Px, MicronsPerPixel

PATCH_SIZE = 512
"""Side of a tile in level-0 pixels."""
MIN_INSTANCES = 20


class LabeledBag(NamedTuple):
    """A bag and the class of its slide."""

    bag: Bag
    label: int


class SlideTruth(NamedTuple):
    """What is true of a slide."""

    positions: Positions
    kinds: CellKinds
    counts: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SyntheticBagSettings:
    """What every slide of a synthetic cohort is drawn from."""

    task: SyntheticTask
    instances: tuple[int, int] = (500, 50_000)
    """Fewest and most per slide, drawn evenly in logarithms."""
    dim: int = 64
    """Width of a feature vector."""
    slides_per_patient: int = 1
    """Patients have one slide, two, … up to this, then one again."""
    sites: int = 1
    """Hospitals; neither label nor features depend on them."""

    def __post_init__(self) -> None:
        few, many = self.instances
        if not MIN_INSTANCES <= few <= many:
            raise ConfigError(
                f"instances is {self.instances}; expected fewest and most, at least {MIN_INSTANCES}"
            )
        if self.slides_per_patient < 1 or self.sites < 1:
            raise ConfigError(
                f"slides_per_patient is {self.slides_per_patient} and sites {self.sites}; "
                "expected 1 or more"
            )
        self.task.make_prototypes(self.dim, np.random.default_rng(0))  # refuses a dim too small


def make_labeled_bag(
    settings: SyntheticBagSettings, seed: int, number: int, *, label: int | None = None
) -> LabeledBag:
    """Slide number so-and-so of a cohort; needs no other slide to be made.

    Args:
        settings: of the cohort.
        seed: of the cohort.
        number: of the slide, from 0.
        label: the class to draw it of, where not its own. Where position decides, this gives
            the slide's twin: the same tissue and the very same features, at other places.
    """
    if label is None:
        label = make_labeled_slide(settings, seed, number).label
    drawn = draw_truth(settings, seed, number, label)
    return LabeledBag(_make_bag(settings, seed, number, drawn), label)


def draw_truth(settings: SyntheticBagSettings, seed: int, number: int, label: int) -> SlideTruth:
    """Tissue and the kind of every cell on it."""
    size, ground, composition, placement, _ = _make_generators(seed, number)
    few, many = settings.instances
    n = min(many, int(np.exp(size.uniform(np.log(few), np.log(many + 1)))))
    places = make_tissue_coords(max(few, n), int(ground.integers(2**31)))
    counts = settings.task.draw_counts(len(places), label, composition)
    return SlideTruth(places, settings.task.place_cells(places, counts, label, placement), counts)


def make_labeled_slide(settings: SyntheticBagSettings, seed: int, number: int) -> LabeledSlide:
    """The slide's line in the cohort's table."""
    most, classes = settings.slides_per_patient, len(settings.task.classes)
    rounds, left = divmod(number, most * (most + 1) // 2)
    slot = next(slot for slot in range(most) if left < (slot + 1) * (slot + 2) // 2)
    # Labels advance by one from round to round: patients of any slide count have all labels.
    label = (rounds + slot) % classes
    site = rounds // classes % settings.sites
    return LabeledSlide(
        slide_id=f"{settings.task.name}-{seed}-{number:03}",
        patient_id=f"patient-{seed}-{rounds * most + slot:03}",
        label=label,
        site=f"site-{site}",
    )


def make_prototypes(settings: SyntheticBagSettings, seed: int) -> NDArray[np.float64]:
    """(kinds, D), the mean feature of every kind of cell, the same for a whole cohort."""
    random = np.random.default_rng(np.random.SeedSequence(seed))
    return settings.task.make_prototypes(settings.dim, random)


def _make_generators(seed: int, number: int) -> list[np.random.Generator]:
    """Independent random numbers for each step: what one draws changes nothing for the next."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number,))
    return [np.random.default_rng(stream) for stream in sequence.spawn(5)]


def _make_bag(settings: SyntheticBagSettings, seed: int, number: int, truth: SlideTruth) -> Bag:
    return Bag(
        slide_id=make_labeled_slide(settings, seed, number).slide_id,
        features=_make_features(settings, seed, number, truth),
        coords=truth.positions * PATCH_SIZE,
        patch_size=Level0Px(PATCH_SIZE),
        mpp=MicronsPerPixel(0.25),
        labels=np.isin(truth.kinds, settings.task.tumor_kinds).astype(np.int64),
        encoder=EncoderId("synthetic"),
        provenance={"synthetic": _describe_settings(settings) | {"seed": seed, "number": number}},
    )


def _make_features(
    settings: SyntheticBagSettings, seed: int, number: int, truth: SlideTruth
) -> NDArray[np.float32]:
    """Drawn kind by kind, then put where the cells are: places alone depend on the label."""
    random = _make_generators(seed, number)[-1]
    rows = random.standard_normal((len(truth.positions), settings.dim), dtype=np.float32)
    means = make_prototypes(settings, seed).astype(np.float32)
    rows += np.repeat(means, truth.counts, axis=0)
    features = np.empty_like(rows)
    features[np.argsort(truth.kinds, kind="stable")] = rows
    return features


def _describe_settings(settings: SyntheticBagSettings) -> dict[str, Any]:
    """The settings as JSON holds them; of outlines, how many there were."""
    task = {field.name: getattr(settings.task, field.name) for field in fields(settings.task)}
    if "outlines" in task:
        task["outlines"] = len(task["outlines"])
    told = {field.name: getattr(settings, field.name) for field in fields(settings)}
    told["task"] = {"name": settings.task.name, **task}
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain
