"""One synthetic slide, made only from the settings, the cohort's seed and its number."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sacmil.bag import Bag, EncoderId
from sacmil.cohorts.cohort import LabeledSlide
from sacmil.errors import ConfigError
from sacmil.synthetic.bags.tasks import CellKinds, Positions, SyntheticTask
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
    """Position and kind of every cell of a slide, and the count of each kind."""

    positions: Positions
    kinds: CellKinds
    counts: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SyntheticBagSettings:
    """Settings of a synthetic cohort."""

    task: SyntheticTask
    instances: tuple[int, int] = (500, 50_000)
    """Fewest and most per slide, log-uniform."""
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
        self.task.make_prototypes(self.dim, np.random.default_rng(0))  # rejects a dim too small


def make_labeled_bag(
    settings: SyntheticBagSettings, seed: int, number: int, *, label: int | None = None
) -> LabeledBag:
    """Return one slide of a cohort, made without the other slides.

    Args:
        settings: of the cohort.
        seed: of the cohort.
        number: of the slide, from 0.
        label: a class to use instead of its own. If only positions depend on the class, this gives
            the slide's twin: the same tissue and the same features, at other positions.
    """
    slide = make_labeled_slide(settings, seed, number)
    label = slide.label if label is None else label
    truth = draw_truth(settings, seed, number, label)
    bag = Bag(
        slide_id=slide.slide_id,
        features=_make_features(settings, seed, number, truth),
        coords=truth.positions * PATCH_SIZE,
        patch_size=Level0Px(PATCH_SIZE),
        mpp=MicronsPerPixel(0.25),
        labels=np.isin(truth.kinds, settings.task.tumor_kinds).astype(np.int64),
        encoder=EncoderId("synthetic"),
        provenance={"synthetic": _describe_settings(settings) | {"seed": seed, "number": number}},
    )
    return LabeledBag(bag, label)


def draw_truth(settings: SyntheticBagSettings, seed: int, number: int, label: int) -> SlideTruth:
    """Draw the tissue and the kind of every cell."""
    size, ground, composition, placement, _ = _make_generators(seed, number)
    few, many = settings.instances
    n = min(many, int(np.exp(size.uniform(np.log(few), np.log(many + 1)))))
    positions = make_tissue_coords(max(few, n), int(ground.integers(2**31)))
    counts = settings.task.draw_counts(len(positions), label, composition)
    kinds = settings.task.place_cells(positions, counts, label, placement)
    return SlideTruth(positions, kinds, counts)


def make_labeled_slide(settings: SyntheticBagSettings, seed: int, number: int) -> LabeledSlide:
    """Return the slide's row in the cohort's table."""
    most, classes = settings.slides_per_patient, len(settings.task.classes)
    rounds, left = divmod(number, most * (most + 1) // 2)
    slot = next(slot for slot in range(most) if left < (slot + 1) * (slot + 2) // 2)
    # Labels advance by one per round: patients with any number of slides have all labels.
    label = (rounds + slot) % classes
    site = rounds // classes % settings.sites
    return LabeledSlide(
        slide_id=f"{settings.task.name}-{seed}-{number:03}",
        patient_id=f"patient-{seed}-{rounds * most + slot:03}",
        label=label,
        site=f"site-{site}",
    )


def make_prototypes(settings: SyntheticBagSettings, seed: int) -> NDArray[np.float64]:
    """Return (kinds, D) the mean feature of every kind of cell, the same for the whole cohort."""
    random = np.random.default_rng(np.random.SeedSequence(seed))
    return settings.task.make_prototypes(settings.dim, random)


def _make_generators(seed: int, number: int) -> list[np.random.Generator]:
    """Return an independent random generator for each step, so that steps do not interact."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number,))
    return [np.random.default_rng(stream) for stream in sequence.spawn(5)]


def _make_features(
    settings: SyntheticBagSettings, seed: int, number: int, truth: SlideTruth
) -> NDArray[np.float32]:
    """Draw features kind by kind, then assign them to the cells: only positions use the label."""
    random = _make_generators(seed, number)[-1]
    rows = random.standard_normal((len(truth.positions), settings.dim), dtype=np.float32)
    means = make_prototypes(settings, seed).astype(np.float32)
    rows += np.repeat(means, truth.counts, axis=0)
    features = np.empty_like(rows)
    features[np.argsort(truth.kinds, kind="stable")] = rows
    return features


def _describe_settings(settings: SyntheticBagSettings) -> dict[str, Any]:
    """Return the settings as JSON values, with the number of outlines instead of the outlines."""
    task = {"name": settings.task.name, **vars(settings.task)}
    if "outlines" in task:
        task["outlines"] = len(task["outlines"])
    plain: dict[str, Any] = json.loads(json.dumps({**vars(settings), "task": task}))
    return plain
