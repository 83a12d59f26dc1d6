"""Several findings on one slide, each present or absent, independently of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sacmil.cohorts.cohort import Label
from sacmil.metrics.classification import auc
from sacmil.synthetic.bags.lesion_shape import Polygons
from sacmil.synthetic.bags.tasks import (
    TASK_LIMITS,
    TISSUES,
    UNASSIGNED,
    CellKinds,
    Cluster,
    Floats,
    Limits,
    Margin,
    Metastasis,
    Positions,
    Random,
    SyntheticTask,
)
from sacmil.tasks import MultiLabel, Task

LABELS = ("clustered", "infiltrated", "metastasis")
Indices = NDArray[np.int64]
make_single_tumour = partial(
    Margin, lesions=1, tumour_share=(0.15, 0.25), density=0.5, immune_share=0.6
)
"""Large enough for the number of immune cells in a third of a slide."""


class Area(NamedTuple):
    """What is in one area of a slide."""

    task: SyntheticTask
    kinds: Indices
    """Its kinds of cells, as indices into those of the slide; healthy tissue first."""


@dataclass(frozen=True, kw_only=True)
class Findings(SyntheticTask):
    """Task 9: which of three findings are there?

    A slide has three areas of equal size, from left to right. Each is a small slide of ``cluster``,
    ``margin`` or ``metastasis`` with cells of its own, so no finding depends on another. Every
    combination of findings is equally frequent.
    """

    name: ClassVar[str] = "findings"
    min_instances: ClassVar[int] = len(LABELS) * SyntheticTask.min_instances
    limits: ClassVar[Mapping[str, Limits]] = TASK_LIMITS | {"missing": Limits(0, 1, "0 to 1")}
    clustered: Cluster = field(default_factory=partial(Cluster, clusters=2))
    """Settings of the first area. ``contrast``, ``zones`` and ``outlines`` are those of the slide,
    here and below."""
    infiltrated: Margin = field(default_factory=make_single_tumour)
    metastasis: Metastasis = field(
        default_factory=partial(Metastasis, lesions=1, lesion_share=(0.03, 0.1))
    )
    missing: float = 0.0
    """Share of empty cells in the table; a patient has at least one finding that is known."""
    outlines: Polygons = ()
    """Shapes of the lesions; random blobs if empty."""

    @property
    def target_task(self) -> Task:
        """All findings at once."""
        return MultiLabel(LABELS)

    @property
    def groups(self) -> int:
        """One for each combination of findings."""
        return 1 << len(LABELS)

    @property
    def areas(self) -> list[Area]:
        """The task of each area, with the settings of the slide."""
        found, start = [], self.zones
        for name in LABELS:
            task: SyntheticTask = replace(
                getattr(self, name),
                contrast=self.contrast,
                zones=self.zones,
                outlines=self.outlines,
            )
            end = start + len(task.other_kinds)
            found.append(Area(task, np.r_[: self.zones, start:end]))
            start = end
        return found

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue, and the cells of every finding."""
        pairs = zip(LABELS, self.areas, strict=True)
        own = [f"{kind} ({name})" for name, area in pairs for kind in area.task.other_kinds]
        return (*TISSUES[: self.zones], *own)

    @property
    def tumor_kinds(self) -> tuple[int, ...]:
        """Indices of the kinds that are tumour."""
        return tuple(int(area.kinds[k]) for area in self.areas for k in area.task.tumor_kinds)

    def draw_label(self, group: int, random: Random) -> Label:
        """Return the findings of the group, 0 or 1 each."""
        return tuple(float(group >> bit & 1) for bit in range(len(LABELS)))

    def hide_label(self, label: Label, random: Random) -> Label:
        """Draw which findings are unknown, but never all of them."""
        assert isinstance(label, tuple)
        is_hidden = random.random(len(label)) < self.missing
        if is_hidden.all():
            is_hidden[random.integers(len(label))] = False
        return tuple(nan if hide else own for hide, own in zip(is_hidden, label, strict=True))

    def draw_other_counts(self, n: int, label: Sequence[float], random: Random) -> list[int]:
        """Draw the counts of each area."""
        sizes = map(len, split_slide(np.arange(n)))
        steps = zip(self.areas, sizes, label, random.spawn(len(LABELS)), strict=True)
        drawn = (area.task.draw_other_counts(m, int(own), r) for area, m, own, r in steps)
        return [count for counts in drawn for count in counts]

    def place_other_cells(
        self,
        kinds: CellKinds,
        positions: Positions,
        counts: list[int],
        label: Sequence[float],
        random: Random,
    ) -> None:
        """Place the cells of each area."""
        by_kind = np.array([0] * self.zones + counts)
        places, streams = split_slide(positions[:, 0]), random.spawn(len(LABELS))
        for area, inside, own, stream in zip(self.areas, places, label, streams, strict=True):
            cells = np.full(len(inside), UNASSIGNED)
            few = by_kind[area.kinds[self.zones :]].tolist()
            area.task.place_other_cells(cells, positions[inside], few, int(own), stream)
            kinds[inside] = np.where(cells == UNASSIGNED, UNASSIGNED, area.kinds[cells])

    def adjust_prototypes(self, prototypes: Floats) -> Floats:
        """Move mimics between healthy tissue and tumour."""
        for area in self.areas:
            prototypes[area.kinds] = area.task.adjust_prototypes(prototypes[area.kinds])
        return prototypes

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Return the score of each finding: that of its task, in its area."""
        scores = []
        for area, inside in zip(self.areas, split_slide(positions[:, 0]), strict=True):
            own = probabilities[inside][:, area.kinds]
            own /= np.maximum(own.sum(1, keepdims=True), 1e-12)
            scores.append(area.task.score_classes(positions[inside], own)[1])
        return np.array(scores)

    def measure_oracle(self, labels: Sequence[Any], scores: Floats) -> dict[str, float]:
        """Return the mean AUC, and that of each label."""
        columns = zip(LABELS, np.transpose(labels), scores.T, strict=True)
        each = {f"auc_{name}": auc(truth == 1, column) for name, truth, column in columns}
        return {"auc": float(np.mean(list(each.values())))} | each


def split_slide(across: Indices) -> list[Indices]:
    """Return the indices of the positions in each area, from left to right."""
    return np.array_split(np.argsort(across, kind="stable"), len(LABELS))
