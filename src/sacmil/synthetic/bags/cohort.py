"""A synthetic cohort: bags made from a seed on demand, or written to a folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from sacmil.arguments import ProgressCallback, ignore_progress
from sacmil.atomic import atomic_write
from sacmil.bag import Bag
from sacmil.cohorts.cohort import Cohort
from sacmil.errors import ConfigError
from sacmil.evaluation.metrics import auc
from sacmil.formats import write_bag
from sacmil.synthetic.bags.labeled_bag import (
    LabeledBag,
    SyntheticBagSettings,
    draw_truth,
    make_labeled_bag,
    make_labeled_slide,
    make_prototypes,
)
from sacmil.synthetic.bags.lesion_shape import Polygons
from sacmil.synthetic.bags.statistics import compute_kind_probabilities
from sacmil.synthetic.bags.tasks import Cluster, SyntheticTask, get_preset

OracleInput = Literal["features", "truth"]


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
        """Names of the labels."""
        return self.settings.task.classes

    @cached_property
    def table(self) -> Cohort:
        """Slides, patients, labels and sites, without making a bag."""
        entries = (
            make_labeled_slide(self.settings, self.seed, number) for number in range(self.slides)
        )
        return Cohort(tuple(entries), self.classes)

    def compute_oracle_auc(self, *, oracle_input: OracleInput = "features") -> float:
        """Return the AUC of an oracle; for several classes, the mean one-vs-rest AUC.

        Chance is 0.5. NaN if a class has no slide. With a hundred slides, the AUC is known to about
        0.03.

        Args:
            oracle_input: the features, or the true kinds of the cells.
        """
        labels = [slide.label for slide in self.table.slides]
        score = self._score_by_truth if oracle_input == "truth" else self._score_by_features
        scores = [score(number, label) for number, label in enumerate(labels)]
        columns = enumerate(np.transpose(scores))
        return float(np.mean([auc(np.equal(labels, label), column) for label, column in columns]))

    def _score_by_truth(self, number: int, label: int) -> NDArray[np.float64]:
        task, truth = self.settings.task, draw_truth(self.settings, self.seed, number, label)
        return task.score_classes(truth.positions, np.eye(len(task.kinds))[truth.kinds])

    def _score_by_features(self, number: int, label: int) -> NDArray[np.float64]:
        bag, _ = make_labeled_bag(self.settings, self.seed, number, label=label)
        return compute_oracle_scores(bag, self.settings, self.seed)


class _LazyBags(Sequence[LabeledBag]):
    def __init__(self, cohort: SyntheticCohort) -> None:
        self.cohort = cohort

    def __len__(self) -> int:
        return self.cohort.slides

    @overload
    def __getitem__(self, index: int) -> LabeledBag: ...
    @overload
    def __getitem__(self, index: slice) -> list[LabeledBag]: ...
    def __getitem__(self, index: int | slice) -> LabeledBag | list[LabeledBag]:
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
        task: metastasis, subtype, cluster or margin; or a task with settings of your own.
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

    The table has slide_id, patient_id, label, and site if there are several.

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


def make_cluster_bags(
    slides: int,
    *,
    seed: int,
    instances: tuple[int, int] = (400, 800),
    dim: int = 32,
    tumour_share: float = 0.1,
    clusters: int = 3,
    contrast: float = 2.0,
) -> list[LabeledBag]:
    """Return small bags whose label is the arrangement of tumour cells, not their number.

    Args:
        slides: number of slides; labels alternate.
        seed: the same seed gives the same cohort.
        instances: fewest and most per slide.
        dim: width of a feature vector.
        tumour_share: tumour instances among all.
        clusters: number of clusters on a slide of label 1.
        contrast: distance between tumour and other instances in standard deviations.
    """
    task = Cluster(
        contrast=contrast,
        zones=1,
        tumour_share=(tumour_share, tumour_share),
        clusters=clusters,
        density=1.0,
    )
    return list(make_synthetic_cohort(task, slides, seed, instances=instances, dim=dim).bags)


def _write_table(cohort: SyntheticCohort, path: Path) -> None:
    columns = ["slide_id", "patient_id", "label"]
    columns += ["site"] if cohort.settings.sites > 1 else []
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, extrasaction="ignore")
        writer.writeheader()
        for slide in cohort.table.slides:
            writer.writerow(slide._asdict() | {"label": cohort.classes[slide.label]})


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

    Args:
        bag: of a synthetic cohort.
        settings: of that cohort.
        seed: of that cohort; it determines the mean feature of each kind of cell.
    """
    positions = np.round(bag.patch_coords).astype(np.int64)
    return settings.task.score_classes(
        positions, compute_kind_probabilities(bag.features, make_prototypes(settings, seed))
    )
