"""A synthetic cohort: bags made from a seed on demand, or written to a folder.

A slide is made only from the settings, the cohort's seed and its number.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sacmil.arguments import ProgressCallback, ignore_progress
from sacmil.atomic import atomic_write
from sacmil.bag import Bag, EncoderId
from sacmil.cohorts.cohort import Cohort, Label, LabeledSlide
from sacmil.errors import ConfigError
from sacmil.formats import write_bag
from sacmil.synthetic.bags.lesion_shape import Polygons
from sacmil.synthetic.bags.presets import get_preset
from sacmil.synthetic.bags.statistics import compute_kind_probabilities
from sacmil.synthetic.bags.tasks import CellKinds, Positions, SyntheticTask
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.units import Level0Px, MicronsPerPixel

OracleInput = Literal["features", "truth"]
PATCH_SIZE = 512
"""Side of a tile in level-0 pixels."""


class LabeledBag(NamedTuple):
    """A bag and the true label of its slide."""

    bag: Bag
    label: Any
    """The index of the class or level; the values, for numbers and findings."""


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
        (few, many), least = self.instances, self.task.min_instances
        if not least <= few <= many:
            raise ConfigError(
                f"instances is {self.instances}; expected fewest and most, at least {least}"
            )
        if self.slides_per_patient < 1 or self.sites < 1:
            raise ConfigError(
                f"slides_per_patient is {self.slides_per_patient} and sites {self.sites}; "
                "expected 1 or more"
            )
        self.task.make_prototypes(self.dim, np.random.default_rng(0))  # rejects a dim too small


@dataclass(frozen=True)
class SyntheticCohort:
    """Slides defined by a seed and settings; small to send to another process."""

    settings: SyntheticBagSettings
    slides: int
    seed: int

    @property
    def bags(self) -> Sequence[LabeledBag]:
        """The bags; each is made anew on every access."""
        return _LazyBags(self)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes or levels; empty for numbers and findings."""
        return self.settings.task.classes

    @cached_property
    def table(self) -> Cohort:
        """Slides, patients, labels and sites, without making a bag."""
        slides = tuple(make_labeled_slide(self.settings, self.seed, n) for n in range(self.slides))
        made = Cohort(slides, task=self.settings.task.target_task)
        return replace(made, task=made.task.complete(made.targets))

    def compute_oracle_auc(self, *, oracle_input: OracleInput = "features") -> float:
        """Return the AUC of an oracle; for several classes, the mean one-vs-rest AUC.

        For findings it is the mean over the labels. Chance is 0.5. NaN if a class has no slide.
        With a hundred slides, the AUC is known to about 0.03.

        Args:
            oracle_input: the features, or the true kinds of the cells.
        """
        metrics = self.compute_oracle_metrics(oracle_input=oracle_input)
        if "auc" not in metrics:
            raise ConfigError(
                f"{self.settings.task.name} has no AUC; call compute_oracle_metrics, which returns "
                f"{', '.join(metrics)}"
            )
        return metrics["auc"]

    def compute_oracle_metrics(self, *, oracle_input: OracleInput = "features") -> dict[str, float]:
        """Return the metrics of an oracle by name, compared with the true labels.

        They are the AUC for classes; R² and Spearman's correlation for a value; the quadratic
        kappa and the mean absolute error for levels; the AUC of each label for findings.

        Args:
            oracle_input: the features, or the true kinds of the cells.
        """
        labels = [draw_label(self.settings, self.seed, number) for number in range(self.slides)]
        score = self._score_by_truth if oracle_input == "truth" else self._score_by_features
        scores = [score(number, label) for number, label in enumerate(labels)]
        return self.settings.task.measure_oracle(labels, np.array(scores))

    def _score_by_truth(self, number: int, label: Label) -> NDArray[np.float64]:
        task, truth = self.settings.task, draw_truth(self.settings, self.seed, number, label)
        return task.score_classes(truth.positions, np.eye(len(task.kinds))[truth.kinds])

    def _score_by_features(self, number: int, label: Label) -> NDArray[np.float64]:
        bag, _ = make_labeled_bag(self.settings, self.seed, number, label=label)
        return compute_oracle_scores(bag, self.settings, self.seed)


class _LazyBags(Sequence[LabeledBag]):
    def __init__(self, cohort: SyntheticCohort) -> None:
        self.cohort = cohort

    def __len__(self) -> int:
        return self.cohort.slides

    def __getitem__(self, index: Any) -> Any:
        number = range(len(self))[index]
        if isinstance(number, range):
            return [self[i] for i in number]
        return make_labeled_bag(self.cohort.settings, self.cohort.seed, number)


def make_synthetic_cohort(
    task: str | SyntheticTask,
    slides: int,
    seed: int,
    *,
    difficulty: str = "medium",
    instances: tuple[int, int] = (500, 50_000),
    dim: int = 64,
    outlines: Polygons = (),
    slides_per_patient: int = 1,
    sites: int = 1,
) -> SyntheticCohort:
    """Return a cohort of a task.

    Args:
        task: metastasis, subtype, cluster, margin, near_or_far, same_or_different or which_side;
            infiltration (a number), infiltration_grade (levels in order) or findings (several
            labels); or a task with settings of your own.
        slides: number of slides. A larger cohort begins with the slides of a smaller one.
        seed: the same seed gives the same cohort.
        difficulty: easy, medium or hard, for a task by name.
        instances: fewest and most per slide, log-uniform.
        dim: width of a feature vector.
        outlines: shapes for the lesions (``read_shapes``), if the task has lesions.
        slides_per_patient: patients have one slide, two, … up to this, then one again.
        sites: number of hospitals; they are independent of the label.
    """
    if slides < 1 or seed < 0:
        raise ConfigError(
            f"slides is {slides} and seed {seed}; expected 1 slide or more, and a seed of 0 or more"
        )
    task = get_preset(task, difficulty) if isinstance(task, str) else task
    if outlines and not hasattr(task, "outlines"):
        raise ConfigError(f"{task.name} has no lesions; expected no outlines, leave them out")
    if outlines:
        task = replace(task, outlines=outlines)  # type: ignore[call-arg]
    settings = SyntheticBagSettings(
        task=task, instances=instances, dim=dim, slides_per_patient=slides_per_patient, sites=sites
    )
    return SyntheticCohort(settings, slides, seed)


def write_synthetic_cohort(
    cohort: SyntheticCohort, folder: str | Path, *, on_progress: ProgressCallback = ignore_progress
) -> Cohort:
    """Write the input of every command: ``bags/<slide_id>.h5`` and ``table.csv``.

    The table has slide_id, patient_id, the target's columns, and site if there are several. The
    columns are ``label`` for classes and levels, ``infiltration``, or one for each finding.

    Args:
        cohort: what to write.
        folder: created if missing.
        on_progress: called after every slide.
    """
    out = Path(folder)
    for number, (bag, _) in enumerate(cohort.bags, start=1):
        write_bag(out / "bags" / f"{bag.slide_id}.h5", bag)
        on_progress("writing bags", number, cohort.slides)
    _write_table(cohort, out / "table.csv")
    return cohort.table


def _write_table(cohort: SyntheticCohort, path: Path) -> None:
    targets = cohort.table.task.source_columns
    columns = ["slide_id", "patient_id", *targets]
    columns += ["site"] if cohort.settings.sites > 1 else []
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, extrasaction="ignore")
        writer.writeheader()
        for slide in cohort.table.slides:
            cells = _format_label(slide.label, cohort.classes)
            writer.writerow(slide._asdict() | dict(zip(targets, cells, strict=True)))


def _format_label(label: Label, classes: tuple[str, ...]) -> list[str]:
    if isinstance(label, tuple):
        return ["" if math.isnan(value) else f"{value:g}" for value in label]
    return [classes[label]]


# --- slides --------------------------------------------------------------------------------------


def make_labeled_bag(
    settings: SyntheticBagSettings, seed: int, number: int, *, label: Label | None = None
) -> LabeledBag:
    """Return one slide of a cohort, made without the other slides.

    Args:
        settings: of the cohort.
        seed: of the cohort.
        number: of the slide, from 0.
        label: to use instead of its own. If only positions depend on the label, this gives the
            slide's twin: the same tissue and the same features, at other positions.
    """
    slide = make_labeled_slide(settings, seed, number)
    label = draw_label(settings, seed, number) if label is None else label
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


def draw_truth(settings: SyntheticBagSettings, seed: int, number: int, label: Label) -> SlideTruth:
    """Draw the tissue and the kind of every cell."""
    size, ground, composition, placement, *_ = _make_generators(seed, number)
    few, many = settings.instances
    n = min(many, int(np.exp(size.uniform(np.log(few), np.log(many + 1)))))
    positions = make_tissue_coords(max(few, n), int(ground.integers(2**31)))
    counts = settings.task.draw_counts(len(positions), label, composition)
    kinds = settings.task.place_cells(positions, counts, label, placement)
    return SlideTruth(positions, kinds, counts)


def make_labeled_slide(settings: SyntheticBagSettings, seed: int, number: int) -> LabeledSlide:
    """Return the slide's row in the cohort's table."""
    patient, group, site = _assign_patient(settings, number)
    random = _make_generators(seed, patient)[-1]
    label = settings.task.draw_label(group, random)
    return LabeledSlide(
        slide_id=f"{settings.task.name}-{seed}-{number:03}",
        patient_id=f"patient-{seed}-{patient:03}",
        label=settings.task.hide_label(label, random),
        site=f"site-{site}",
    )


def draw_label(settings: SyntheticBagSettings, seed: int, number: int) -> Label:
    """Return the true label of a slide, which is that of its patient."""
    patient, group, _ = _assign_patient(settings, number)
    return settings.task.draw_label(group, _make_generators(seed, patient)[-1])


def _assign_patient(settings: SyntheticBagSettings, number: int) -> tuple[int, int, int]:
    """Return the patient of a slide, the patient's group and the site."""
    most, groups = settings.slides_per_patient, settings.task.groups
    rounds, left = divmod(number, most * (most + 1) // 2)
    slot = next(slot for slot in range(most) if left < (slot + 1) * (slot + 2) // 2)
    # Groups advance by one per round: patients with any number of slides are of all groups.
    return rounds * most + slot, (rounds + slot) % groups, rounds // groups % settings.sites


def make_prototypes(settings: SyntheticBagSettings, seed: int) -> NDArray[np.float64]:
    """Return (kinds, D) the mean feature of every kind of cell, the same for the whole cohort."""
    random = np.random.default_rng(np.random.SeedSequence(seed))
    return settings.task.make_prototypes(settings.dim, random)


def _make_generators(seed: int, number: int) -> list[np.random.Generator]:
    """Return an independent random generator for each step, so that steps do not interact.

    The last is for the label of the patient of this number; the others are for the slide.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(number,))
    return [np.random.default_rng(stream) for stream in sequence.spawn(6)]


def _make_features(
    settings: SyntheticBagSettings, seed: int, number: int, truth: SlideTruth
) -> NDArray[np.float32]:
    """Draw features kind by kind, then assign them to the cells: only positions use the label."""
    *_, random, _ = _make_generators(seed, number)
    rows = random.standard_normal((len(truth.positions), settings.dim), dtype=np.float32)
    means = make_prototypes(settings, seed).astype(np.float32)
    rows += np.repeat(means, truth.counts, axis=0)
    features = np.empty_like(rows)
    features[np.argsort(truth.kinds, kind="stable")] = rows
    return features


def _describe_settings(settings: SyntheticBagSettings) -> dict[str, Any]:
    """Return the settings as JSON values, with the number of outlines instead of the outlines."""
    plain: dict[str, Any] = json.loads(json.dumps(vars(settings), default=_describe_task))
    return plain


def _describe_task(task: SyntheticTask) -> dict[str, Any]:
    given = {"name": task.name, **vars(task)}
    return given | {"outlines": len(given["outlines"])} if "outlines" in given else given


# --- oracles: scores computed with knowledge of how the slides were made
#
# There are two oracles. Both use the task's own statistic (``SyntheticTask.score_classes``):
#
# * ``"truth"`` knows the kind of every cell. Its errors come from the randomness of slides only.
# * ``"features"`` sees the features, and knows the mean of each kind and the noise. It converts
#   them to probabilities of the kinds. A model that has learned everything about single cells and
#   about the task could reach this.
#
# The statistic is not the exact likelihood ratio, except for the true kinds of ``subtype``. So the
# oracle is a reference for comparison, not a bound on every method.


def compute_oracle_scores(
    bag: Bag, settings: SyntheticBagSettings, seed: int
) -> NDArray[np.float64]:
    """Return (C,) scores of the oracle that sees the features; higher is more likely.

    For a task with a value it is the value; for findings, a score for each label.

    Args:
        bag: of a synthetic cohort.
        settings: of that cohort.
        seed: of that cohort; it determines the mean feature of each kind of cell.
    """
    positions = np.round(bag.patch_coords).astype(np.int64)
    return settings.task.score_classes(
        positions, compute_kind_probabilities(bag.features, make_prototypes(settings, seed))
    )
