"""Tables in Markdown and pictures of one study, ready for docs/results.md."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy._figures import (
    Standing,
    ceiling,
    complete,
    mean_ranks,
    more,
    standings,
    tasks_of,
)
from benchmarks.accuracy._lines import Line
from sacmil.evaluation.table_format import format_p_value

REFERENCE = {
    "inside": "local",
    "extrapolation": "position=prope",
    "recipes": "sac_mil_local, standard",
    "few": "sac_mil_twice, start 2",
    "larger": "sac_mil_local",
}
"""What others are held against, where it is not our preset."""
OWN = {"calmer": "standard", "calmer_longer": "standard", "calmer_labels": "standard"}
"""The recipe by which each model is the reference of its own variants."""
SURENESS = ("recipes", *OWN)
"""Studies about how sure models are of what they get wrong."""
PRESETS = ("sac_mil_twice", "sac_mil_local")
"""Ours, the newest first."""
INK, CHANCE = "#1b6ca8", 0.5
ACROSS = 3
"""Panels of a picture side by side: more could not be read."""
SURE = 0.05
"""Below which a p is called a difference."""


def block(study: str, lines: Sequence[Line], pictures: Path, address: str) -> str:
    """Everything figures can say of a study, in Markdown.

    Args:
        study: its name.
        lines: its results.
        pictures: folder for its pictures.
        address: of that folder, as the page refers to it.
    """
    tasks = dict(sorted(tasks_of(lines).items(), key=lambda item: _by_number(item[0])))
    if not tasks:
        return "_Not run yet._"
    kind = study.removesuffix(".confirm")
    held = _held(kind, tasks)
    ceilings = {task: ceiling(tasks[task]) for task in tasks}
    parts = [overview(ranked, reference, ceilings) for reference, ranked in held.items()]
    if kind == "extrapolation":
        lengths = {task: _by_length(rows) for task, rows in tasks.items()}
        draw_lengths(lengths, pictures / "lengths.png")
        parts.append(_lengths(lengths))
        parts.append(f"![AUC against length]({address}/lengths.png)")
    if kind == "seeds":
        parts.append(_spread(tasks))
    if kind in SURENESS:
        parts.append(_log_losses(tasks))
    picture = pictures / f"{study}.png"
    draw(_together(held), picture)
    parts.append(f"![AUC of every variant on every task]({address}/{picture.name})")
    tables = [
        table(task, ranked[task], tasks[task], reference)
        for reference, ranked in held.items()
        for task in ranked
    ]
    parts.append(_folded("Every task with intervals", tables))
    return "\n\n".join([*parts, _small_print(lines)])


Ranked = Mapping[str, Sequence[Standing]]
"""Of each task the variants, the best first."""


def _held(kind: str, tasks: Mapping[str, Sequence[Line]]) -> dict[str, Ranked]:
    """By what they are held against."""
    if kind not in OWN:
        reference = REFERENCE.get(kind) or newest(tasks)
        return {reference: {task: standings(rows, reference) for task, rows in tasks.items()}}
    models = dict.fromkeys(line["model"] for rows in tasks.values() for line in rows)
    held: dict[str, Ranked] = {}
    for model in sorted(models, reverse=True):
        own = {task: [line for line in tasks[task] if line["model"] == model] for task in tasks}
        reference = f"{model}, {OWN[kind]}"
        held[reference] = {task: standings(rows, reference) for task, rows in own.items() if rows}
    return held


def _together(held: Mapping[str, Ranked]) -> Ranked:
    """All of a task, the best first."""
    found: dict[str, list[Standing]] = defaultdict(list)
    for ranked in held.values():
        for task, rows in ranked.items():
            found[task] += rows
    return {
        task: sorted(rows, key=lambda row: -row.figures["auc"].mean) for task, rows in found.items()
    }


def _by_number(task: str) -> tuple[str, int]:
    """Whatever was done first: by the alphabet, 100 slides before 1,000."""
    digits = re.sub(r"\D", "", task)
    return re.sub(r"\d", "", task), int(digits or 0)


def newest(tasks: Mapping[str, Sequence[Line]]) -> str:
    """The newest of our presets that has done all that any of them has."""
    done = [{line["variant"] for line in complete(lines)} for lines in tasks.values()]
    done = [variants for variants in done if variants & set(PRESETS)]
    whole = (preset for preset in PRESETS if all(preset in variants for variants in done))
    return next(whole, PRESETS[-1]) if done else PRESETS[-1]


def overview(ranked: Ranked, reference: str, ceilings: Mapping[str, float]) -> str:
    """A row per variant, a column per task; the best mean rank first."""
    ranks = mean_ranks(ranked)
    by_task = {task: {row.variant: row for row in rows} for task, rows in ranked.items()}
    names = list(dict.fromkeys(name for rows in by_task.values() for name in rows))
    names.sort(key=lambda name: ranks.get(name, math.inf))
    body = [
        [name, *(_cell(by_task[task].get(name)) for task in ranked), _rank(ranks, name)]
        for name in names
    ]
    if any(math.isfinite(value) for value in ceilings.values()):
        told = [f"{v:.3f}" if math.isfinite(v) else "" for v in ceilings.values()]
        body.insert(0, ["_oracle_", *told, ""])
    note = (
        f"AUC, mean over runs (minus that of {reference}; **bold** where p < 0.05 after Holm), and "
        "the mean rank over tasks."
    )
    return f"{note}\n\n{_markdown(['', *ranked, 'rank'], body)}"


def _cell(row: Standing | None) -> str:
    if row is None:
        return ""
    auc, other = row.figures["auc"].mean, row.against
    if other is None:
        return f"{auc:.3f}"
    text = f"{auc:.3f} ({_signed(-other.difference)})"
    return f"**{text}**" if other.p_holm is not None and other.p_holm < SURE else text


def _rank(ranks: Mapping[str, float], name: str) -> str:
    return f"{ranks[name]:.1f}" if name in ranks else ""


def _folded(title: str, parts: Sequence[str]) -> str:
    """Shown when asked for."""
    held = "\n\n".join(parts)
    return f"<details><summary>{title}</summary>\n\n{held}\n\n</details>"


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(task: str, rows: Sequence[Standing], lines: Sequence[Line], reference: str) -> str:
    """A task: one row per variant, the best first."""
    located = any(math.isfinite(row.localisation) for row in rows)
    head = ["", "AUC [95 %]", f"minus {reference} [95 %]", "p", "p of t", "accuracy", "runs"]
    head += ["localisation"] if located else []
    top = ceiling(lines)
    told = f"**{task}**" + (f" (oracle {top:.3f}, chance 0.5)" if math.isfinite(top) else "")
    return f"{told}\n\n" + _markdown(head, [_row(row, located=located) for row in rows])


def _row(row: Standing, *, located: bool) -> list[str]:
    auc, accuracy, other = row.figures["auc"], row.figures["accuracy"], row.against
    # A comparison is told as reference minus variant; the table says it the other way round.
    difference = (
        ""
        if other is None
        else (f"{_signed(-other.difference)} [{_signed(-other.high)}, {_signed(-other.low)}]")
    )
    tests = (other.p_holm, other.p_t) if other is not None else (None, None)
    cells = [
        row.variant,
        f"{auc.mean:.3f} [{auc.low:.3f}, {auc.high:.3f}]",
        difference,
        *("" if p is None else format_p_value(p) for p in tests),
        f"{accuracy.mean:.3f}",
        str(row.runs),
    ]
    return cells + ([f"{row.localisation:.3f}"] if located else [])


def _signed(value: float) -> str:
    """With its sign; what rounds to zero has none."""
    return f"{value:+.3f}" if round(value, 3) else "0.000"


ByLength = Mapping[str, Mapping[str, float]]
"""AUC by variant and by how many times as long as in training bags are."""


def _by_length(lines: Sequence[Line]) -> ByLength:
    """Mean over seeds."""
    longer = {f"x{times}": more(lines, f"x{times}") for times in (2, 4, 8, 16)}
    usual: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        usual[line["variant"]].append(float(line["auc"]))
    found = {"x1": dict(usual), **longer}
    return {
        variant: {name: float(np.mean(held[variant])) for name, held in found.items()}
        for variant in sorted(usual)
    }


def _lengths(tasks: Mapping[str, ByLength]) -> str:
    """A table per task, a row per variant."""
    parts = []
    for task, found in tasks.items():
        head = ["", *next(iter(found.values()))]
        rows = [
            [variant, *(f"{auc:.3f}" for auc in row.values())] for variant, row in found.items()
        ]
        parts.append(
            f"**{task}, so many times as long as in training**\n\n" + _markdown(head, rows)
        )
    return "\n\n".join(parts)


def draw_lengths(tasks: Mapping[str, ByLength], path: Path) -> None:
    """A panel per task, a line per variant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(tasks) + 1.6, 3.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, (task, found) in zip(panels, tasks.items(), strict=True):
        for variant, row in found.items():
            axes.plot(list(row), list(row.values()), marker="o", markersize=3, label=variant)
        axes.axhline(CHANCE, color="grey", linestyle=":", linewidth=1)
        axes.set_title(task, fontsize=9)
        axes.set_xlabel("length of bags, in that of training", fontsize=8)
    panels[0].set_ylabel("AUC", fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _spread(tasks: Mapping[str, Sequence[Line]]) -> str:
    """What seeds alone do to AUC and accuracy."""
    rows = []
    for task, lines in tasks.items():
        for variant in sorted({line["variant"] for line in lines}):
            auc, accuracy = (
                np.array([float(line[key]) for line in lines if line["variant"] == variant])
                for key in ("auc", "accuracy")
            )
            told = [
                f"{auc.mean():.3f}",
                f"{auc.std(ddof=1):.3f}",
                f"{auc.min():.3f}–{auc.max():.3f}",
            ]
            told += [f"{accuracy.std(ddof=1):.3f}", str(len(auc))]
            rows.append([task, variant, *told])
    head = ["", "", "AUC", "deviation", "range", "deviation of accuracy", "seeds"]
    return "What seeds alone do:\n\n" + _markdown(head, rows)


def _log_losses(tasks: Mapping[str, Sequence[Line]]) -> str:
    """A row per variant that did all tasks, a column per task; the lowest mean first."""
    held: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task, lines in tasks.items():
        for line in lines:
            held[line["variant"]][task].append(float(line["log_loss"]))
    means = {
        variant: [float(np.mean(by_task[task])) for task in tasks]
        for variant, by_task in held.items()
        if len(by_task) == len(tasks)
    }
    rows = [
        [variant, *(f"{one:.2f}" for one in each), f"{np.mean(each):.2f}"]
        for variant, each in sorted(means.items(), key=lambda item: np.mean(item[1]))
    ]
    return "Log loss, mean over runs:\n\n" + _markdown(["", *tasks, "mean"], rows)


def _small_print(lines: Sequence[Line]) -> str:
    """What made the figures, so that nobody has to ask."""
    runs = [line for line in lines if line["role"] == "run" and not line["failure"]]
    tunes = sum(line["role"] == "tune" for line in lines)
    hours = sum(float(line["seconds"] or 0) for line in lines) / 3600
    devices = ", ".join(sorted({f"{line['device']}, torch {line['torch']}" for line in runs}))
    failed = sum(bool(line["failure"]) for line in lines)
    return (
        f"<sub>{len(runs)} runs and {tunes} that tuned, {failed} failed; {hours:.1f} hours of "
        f"training side by side on {devices}. Intervals: bags (of IDC, slides) drawn again within "
        "folds (of BREAST, from all), the weights as they are; p: paired permutation of bags (of "
        "IDC, slides), after Holm; p of t: "
        "corrected resampled t-test over folds, as it is.</sub>"
    )


def draw(ranked: Ranked, path: Path) -> None:
    """A panel per task: AUC with its interval, the best on top."""
    from matplotlib.figure import Figure

    tall = max(len(rows) for rows in ranked.values())
    across = min(len(ranked), ACROSS)
    down = math.ceil(len(ranked) / across)
    size = 3.4 * across + 1, (1.2 + 0.24 * tall) * down
    figure = Figure(figsize=size, layout="constrained")
    for place, (task, rows) in enumerate(ranked.items(), start=1):
        _panel(figure.add_subplot(down, across, place), task, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, task: str, rows: Sequence[Standing]) -> None:
    for place, row in enumerate(rows):
        auc = row.figures["auc"]
        axes.plot([auc.low, auc.high], [place, place], color="#9bb8d3", linewidth=2)
        axes.plot(auc.mean, place, "o", color=INK, markersize=4)
    axes.axvline(CHANCE, color="grey", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.variant for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(task, fontsize=9)
    axes.set_xlabel("AUC", fontsize=8)
