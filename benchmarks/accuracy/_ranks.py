"""Where models stand over all studies: mean ranks on every task, of those that did all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.accuracy._figures import complete, lines_of, tasks_of, told
from benchmarks.accuracy._lines import Line

STUDIES = ("suite", "colon_breast", "idc")
"""That every model takes part in."""
SECOND = ("suite_second", "colon_breast", "idc")
"""Second rounds, in which sac_mil_twice takes part."""
SLOWEST = ("suite_slowest", "suite_slowest_rest")
"""Rounds of the slowest models, all of them synthetic."""
ENCODERS = ("lite0_mid", "rgb")
"""Of tasks that only some models did."""

Ranks = Mapping[str, Mapping[str, float]]
"""By model and task; 1 is the best."""


def block(results: Path, pictures: Path, address: str) -> str:
    """Table and picture, in Markdown.

    Args:
        results: folder of CSV files.
        pictures: folder for the picture.
        address: of that folder, as the page refers to it.
    """
    tables = {name: _ranked(results, name) for name in (STUDIES, SECOND, SLOWEST)}
    parts = [
        f"{_said(results, name)}:\n\n{_table(found)}" for name, found in tables.items() if found
    ]
    if not parts:
        return "_Not run yet._"
    draw(next(found for found in tables.values() if found), pictures / "ranks.png")
    return "\n\n".join([parts[0], f"![Ranks on every task]({address}/ranks.png)", *parts[1:]])


def _ranked(results: Path, studies: Sequence[str]) -> Ranks:
    """Over the tasks of some studies, but for encoders that only some models did."""
    lines = [line for study in studies for line in _lines(results, study)]
    return ranks({t: held for t, held in tasks_of(lines).items() if not t.endswith(ENCODERS)})


def _said(results: Path, studies: Sequence[str]) -> str:
    """Which studies, and which of them have been confirmed."""
    return "Ranks over " + ", ".join(
        f"{study} ({'confirmed' if _confirmed(results, study) else 'development'})"
        for study in studies
        if tasks_of(_lines(results, study))
    )


def _table(found: Ranks) -> str:
    names = list(next(iter(found.values())))
    rows = [
        [model, *(f"{one:g}" for one in by_task.values()), f"{_mean(by_task):.2f}"]
        for model, by_task in found.items()
    ]
    table = [["", *names, "mean"], ["---"] * (len(names) + 2), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def _lines(results: Path, study: str) -> Sequence[Line]:
    """Of the confirmatory run, where it is finished; before, of development."""
    phase = ".confirm" if _confirmed(results, study) else ""
    return lines_of(results, f"{study}{phase}")


def _confirmed(results: Path, study: str) -> bool:
    return told(results / f"{study}.confirm.json")


def ranks(tasks: Mapping[str, Sequence[Line]]) -> Ranks:
    """Of models that did all tasks, the best mean first."""
    auc = {task: _auc(complete(lines)) for task, lines in tasks.items()}
    models = sorted(set.intersection(*map(set, auc.values()))) if auc else []
    found: dict[str, dict[str, float]] = {model: {} for model in models}
    for task, by_model in auc.items():
        for model, rank in zip(models, rankdata([-by_model[one] for one in models]), strict=True):
            found[model][task] = float(rank)
    return dict(sorted(found.items(), key=lambda one: _mean(one[1])))


def _auc(lines: Sequence[Line]) -> dict[str, float]:
    """Mean over folds, of all digits; the answers that tables are made of are written with five."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        found[line["variant"]].append(float(line["auc"]))
    return {variant: round(float(np.mean(held)), 12) for variant, held in found.items()}


def _mean(by_task: Mapping[str, float]) -> float:
    return float(np.mean(list(by_task.values())))


def draw(found: Ranks, path: Path) -> None:
    """A row per model: a ring for each task, a dot for the mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1 + 0.28 * len(found)), layout="constrained")
    axes: Any = figure.subplots()
    for place, by_task in enumerate(found.values()):
        each = list(by_task.values())
        axes.plot(each, [place] * len(each), "o", color="#9bb8d3", fillstyle="none")
        axes.plot(_mean(by_task), place, "o", color="#1b6ca8")
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("rank by AUC: rings are tasks, dots their mean", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
