"""A synthetic cohort: slides made from a seed when they are asked for, or written to a folder."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import overload

from sacmil.atomic import whole_file
from sacmil.cohorts.synthetic.clustering import Cluster
from sacmil.cohorts.synthetic.margin import Margin
from sacmil.cohorts.synthetic.metastasis import Metastasis
from sacmil.cohorts.synthetic.oracle import Sight, ceiling
from sacmil.cohorts.synthetic.presets import preset
from sacmil.cohorts.synthetic.shape import Polygons
from sacmil.cohorts.synthetic.slide import LabelledBag, Settings, entry, make_slide
from sacmil.cohorts.synthetic.task import Task
from sacmil.cohorts.table import Cohort
from sacmil.errors import ConfigError
from sacmil.formats import write_bag

Progress = Callable[[int, int], None]
"""Called with how many slides are written and how many there are."""


@dataclass(frozen=True)
class SyntheticCohort:
    """Slides that a seed and settings say everything about; small to send to another process."""

    settings: Settings
    slides: int
    seed: int

    @property
    def bags(self) -> Sequence[LabelledBag]:
        """The slides, each made anew whenever it is asked for."""
        return _Bags(self)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.settings.task.classes

    @cached_property
    def table(self) -> Cohort:
        """Slides, patients, labels and sites, without making a bag."""
        entries = (entry(self.settings, self.seed, number) for number in range(self.slides))
        return Cohort(tuple(entries), self.classes)

    def ceiling(self, *, sees: Sight = "features") -> float:
        """The AUC of an oracle over these slides (see ``oracle.py``); chance is 0.5."""
        return ceiling(self.settings, self.slides, self.seed, sees=sees)


class _Bags(Sequence[LabelledBag]):
    def __init__(self, cohort: SyntheticCohort) -> None:
        self.cohort = cohort

    def __len__(self) -> int:
        return self.cohort.slides

    @overload
    def __getitem__(self, index: int) -> LabelledBag: ...
    @overload
    def __getitem__(self, index: slice) -> list[LabelledBag]: ...
    def __getitem__(self, index: int | slice) -> LabelledBag | list[LabelledBag]:
        number = range(len(self))[index]
        if isinstance(number, range):
            return [self[one] for one in number]
        return make_slide(self.cohort.settings, self.cohort.seed, number)


def synthetic_cohort(
    task: str | Task,
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
    """A cohort of a task.

    Args:
        task: metastasis, subtype, cluster or margin; or a task with settings of your own.
        slides: how many. A larger cohort begins with the smaller one.
        seed: the same seed gives the same cohort.
        difficulty: easy, medium or hard, for a task by name.
        instances: fewest and most per slide, drawn evenly in logarithms.
        dim: width of a feature vector.
        outlines: shapes for the lesions (``read_shapes``), where the task has any.
        slides_per_patient: patients have one slide, two, … up to this, then one again.
        sites: hospitals; they say nothing of the label.
    """
    if slides < 1 or seed < 0:
        raise ConfigError(
            f"slides is {slides} and seed {seed}; expected at least 1 slide, and 0 or more"
        )
    chosen = preset(task, difficulty) if isinstance(task, str) else task
    if outlines:
        chosen = _shaped(chosen, outlines)
    settings = Settings(
        task=chosen,
        instances=instances,
        dim=dim,
        slides_per_patient=slides_per_patient,
        sites=sites,
    )
    return SyntheticCohort(settings, slides, seed)


def write_cohort(
    cohort: SyntheticCohort, folder: str | Path, *, progress: Progress | None = None
) -> Cohort:
    """Write what every command takes: ``bags/<slide_id>.h5`` and ``table.csv``.

    The table has slide_id, patient_id, label, and site where there are several.

    Args:
        cohort: what to write.
        folder: made where it is not there.
        progress: told of every slide.
    """
    out = Path(folder)
    for number, (bag, _) in enumerate(cohort.bags, start=1):
        write_bag(out / "bags" / f"{bag.slide_id}.h5", bag)
        if progress:
            progress(number, cohort.slides)
    _write_table(cohort, out / "table.csv")
    return cohort.table


def cluster(
    slides: int,
    *,
    seed: int,
    instances: tuple[int, int] = (400, 800),
    dim: int = 32,
    tumour_share: float = 0.1,
    clusters: int = 3,
    contrast: float = 2.0,
) -> list[LabelledBag]:
    """Small slides whose label is how the tumour cells stand, not how many there are.

    Args:
        slides: how many; labels alternate.
        seed: the same seed gives the same cohort.
        instances: fewest and most per slide.
        dim: width of a feature vector.
        tumour_share: tumour instances among all.
        clusters: how many clusters the tumour of a slide of label 1 stands in.
        contrast: distance between tumour and other instances in standard deviations.
    """
    task = Cluster(
        contrast=contrast,
        zones=1,
        tumour_share=(tumour_share, tumour_share),
        clusters=clusters,
        density=1.0,
    )
    return list(synthetic_cohort(task, slides, seed, instances=instances, dim=dim).bags)


def _shaped(task: Task, outlines: Polygons) -> Task:
    if not isinstance(task, Metastasis | Cluster | Margin):
        raise ConfigError(f"{task.name} has no lesions to shape; expected no outlines")
    return replace(task, outlines=outlines)


def _write_table(cohort: SyntheticCohort, path: Path) -> None:
    columns = ["slide_id", "patient_id", "label"]
    columns += ["site"] if cohort.settings.sites > 1 else []
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, extrasaction="ignore")
        writer.writeheader()
        for slide in cohort.table.slides:
            writer.writerow(slide._asdict() | {"label": cohort.classes[slide.label]})
