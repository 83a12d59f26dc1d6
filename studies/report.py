"""From predictions to pages: the product's own statistics, a full table, short tables, a figure.

``docs/results/tables/STUDY.csv`` has a row for every round, task and model, by ``sacmil.evaluate``
and ``sacmil.compare``. The tables of ``docs/results/STUDY.md`` between ``<!-- table N -->`` and
``<!-- end -->`` and the figure are made from it; the words of a page are written by people.
A study's ``page`` says what they show::

    page:
      tables:
        - {round: confirmation, tasks: [cluster, margin], models: [sac_mil_local, abmil_gated]}

The figure shows the AUC of the first table, or what ``figure`` says. A table may have a ``metric``
(auc, accuracy, log_loss, localization, c), ``longer: 16`` (AUC at the length of training, and on
slides so many times as long), ``spread: true`` (over seeds) and ``mean_rank: true``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import rankdata

import sacmil
from sacmil.atomic import atomic_write, write_file
from sacmil.errors import ConfigError
from sacmil.results import Predictions, write_predictions
from studies.results import make_file_name, read_runs, select_complete_models
from studies.study import FOLDER, Study, dump_json

DOCS = FOLDER.parent / "docs" / "results"
COLUMNS = (
    *("round", "task", "model", "runs", "auc", "auc_low", "auc_high", "accuracy", "accuracy_low"),
    *("accuracy_high", "log_loss", "localization", "oracle"),
    *("reference", "difference", "difference_low", "difference_high", "p_holm", "p_t"),
    *("significant", "auc_min", "auc_max", "auc_sd", "seconds", "parameters", "further"),
)
SURVIVAL_COLUMNS = ("c", "c_low", "c_high")
"""Concordance and its interval, in studies that have survival."""
METRICS = ("auc", "accuracy")
RUN_MEANS = ("log_loss", "localization", "oracle", "seconds")
"""Means over runs. Past predictions keep the order of very sure answers, not how sure they were."""
DRAWS = 2000
WORKERS = 2
MAX_TABLES = 2
_BLOCK = re.compile(r"(<!-- table (\d+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = dict[str, Any]


def write_tables(studies: Sequence[Study], results: Path, docs: Path) -> None:
    """Write the full table of every study."""
    (docs / "tables").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(WORKERS) as pool:
        for study in studies:
            rows = compute_rows(study, results, pool)
            write_table(docs / "tables" / f"{study.name}.csv", rows)
            print(f"{study.name}: {len(rows)} rows", flush=True)


def compute_rows(study: Study, results: Path, pool: ProcessPoolExecutor) -> list[Row]:
    """Return a row for every round, task and model that has all its folds and seeds."""
    jobs = []
    for one in study.rounds:
        runs = [row for row in read_runs(results, study.name, one.id) if row["role"] == "run"]
        for task in dict.fromkeys(row["task"] for row in runs):
            path = results / study.name / one.id / f"{make_file_name(task)}.csv.gz"
            of_task = [row for row in runs if row["task"] == task and not row["failure"]]
            jobs.append((one.id, task, path, dict(study.references), of_task))
    return [row for rows in pool.map(_compute_task, jobs) for row in rows]


def _compute_task(job: tuple[str, str, Path, dict[str, str], list[dict[str, str]]]) -> list[Row]:
    round_id, task, path, references, runs = job
    predictions = select_complete_models(path)
    with TemporaryDirectory() as folder:
        figures = _evaluate(predictions, Path(folder))
        pairs = _compare(predictions, references, Path(folder))
    rows = []
    for model in figures:
        own = [row for row in runs if row["model"] == model]
        row = {"round": round_id, "task": task, "model": model, "runs": len(own)}
        row |= figures[model] | pairs.get(model, {}) | _summarize_runs(own)
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row["c"] if "c" in row else row["auc"]))


def _evaluate(predictions: Predictions, folder: Path) -> dict[str, dict[str, float]]:
    file = folder / "predictions.csv"
    write_predictions(file, predictions)
    metrics = METRICS if predictions.task.is_classification else ("c",)
    estimates = sacmil.evaluate(file, metrics=metrics, draws=DRAWS).estimates
    return {
        model: {
            f"{metric}{suffix}": getattr(one, name)
            for metric, one in of.items()
            for suffix, name in (("", "mean"), ("_low", "low"), ("_high", "high"))
        }
        for model, of in estimates.items()
    }


def _compare(
    predictions: Predictions, references: Mapping[str, str], folder: Path
) -> dict[str, Row]:
    """Return the comparison of every model with its reference, with Holm's correction for each."""
    names = sorted(set(predictions.model.tolist()))
    found: dict[str, Row] = {}
    for beginning, reference in references.items():
        group = [name for name in names if name.startswith(beginning) or name == reference]
        if reference not in group or len(group) < 2:
            continue
        file = folder / "group.csv"
        write_predictions(file, predictions.select(np.isin(predictions.model, group)))
        compared = sacmil.compare(file, against=reference, draws=DRAWS).to_frame()
        for pair in compared.to_dict("records"):
            is_first = pair["first"] == reference
            low, high = pair["low"], pair["high"]
            found[pair["second"] if is_first else pair["first"]] = {
                "reference": reference,
                "difference": -pair["difference"] if is_first else pair["difference"],
                "difference_low": -high if is_first else low,
                "difference_high": -low if is_first else high,
                "p_holm": pair["p_holm"],
                "p_t": pair["p_t"],
                "significant": "yes" if pair["significant"] else "no",
            }
    return found


def _summarize_runs(runs: Sequence[Mapping[str, str]]) -> Row:
    aucs = [float(row["auc"]) for row in runs if row["auc"]]
    further: dict[str, list[float]] = {}
    for row in runs:
        for name, value in json.loads(row["further"] or "{}").items():
            further.setdefault(name, []).append(float(value))
    return {
        **{name: _average(row[name] for row in runs) for name in RUN_MEANS},
        "auc_min": min(aucs, default=float("nan")),
        "auc_max": max(aucs, default=float("nan")),
        "auc_sd": float(np.std(aucs, ddof=1)) if len(aucs) > 1 else float("nan"),
        "parameters": runs[0]["parameters"],
        "further": dump_json({name: round(_average(of), 4) for name, of in further.items()}),
    }


def _average(values: Iterable[Any]) -> float:
    numbers = np.array([float(value) for value in values if value != ""], dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return float(numbers.mean()) if len(numbers) else float("nan")


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write the full table of a study."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        has_times = any("c" in row for row in rows)
        columns = (*COLUMNS, *(SURVIVAL_COLUMNS if has_times else ()))
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _format_cell(row.get(name)) for name in columns} for row in rows)


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4f}"
    return "" if value is None else str(value)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the full table of a study."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# --- pages ----------------------------------------------------------------------------------------


def fill_page(study: Study, docs: Path) -> None:
    """Write the short tables and the figure of a study's page, where it has one."""
    if not study.page:
        return
    rows = read_table(docs / "tables" / f"{study.name}.csv")
    specs = [dict(spec) for spec in study.page["tables"]]
    tables = [render_table(study, spec, rows) for spec in specs]
    drawn = study.page.get("figure", specs[0])
    draw_figure(docs / "figures" / f"{study.name}.svg", study, drawn, rows)
    page = docs / f"{study.name}.md"
    if not page.exists():
        return

    def fill(found: re.Match[str]) -> str:
        number = int(found[2])
        if not 1 <= number <= len(tables):
            raise ConfigError(f"{page}: has a table {number}; the study has {len(tables)}")
        return f"{found[1]}{tables[number - 1]}\n{found[3]}"

    write_file(page, _BLOCK.sub(fill, page.read_text(encoding="utf-8")))


def select_rows(
    study: Study, spec: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
) -> dict[str, dict[str, Mapping[str, str]]]:
    """Return rows by model and task, as a table asks for them."""
    study.get_round(spec["round"])
    found: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in rows:
        if row["round"] == spec["round"] and row["task"] in spec["tasks"]:
            found.setdefault(row["model"], {})[row["task"]] = row
    return {model: found.get(model, {}) for model in spec.get("models", found)}


def render_table(study: Study, spec: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> str:
    """Return a short table: a row per model, a column per task.

    A star marks what differs significantly from the reference.
    """
    chosen, tasks = select_rows(study, spec, rows), list(spec["tasks"])
    ranks = _compute_mean_ranks(chosen, tasks) if spec.get("mean_rank") else {}
    lines = [["model", *tasks, *(["mean rank"] if ranks else [])]]
    lines.append(["---"] * len(lines[0]))
    for model, by_task in chosen.items():
        cells = [_render_cell(spec, by_task.get(task)) for task in tasks]
        lines.append([model, *cells, *([f"{ranks[model]:.1f}"] if ranks else [])])
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _render_cell(spec: Mapping[str, Any], row: Mapping[str, str] | None) -> str:
    if row is None:
        return ""
    if spec.get("longer"):
        longest = json.loads(row["further"])[f"x{spec['longer']}"]
        return f"{float(row['auc']):.3f} → {longest:.3f}"
    if spec.get("spread"):
        least, most = float(row["auc_min"]), float(row["auc_max"])
        return f"{float(row['auc']):.3f} ± {float(row['auc_sd']):.3f} ({least:.3f}–{most:.3f})"
    metric = spec.get("metric", "auc")
    if not row[metric]:
        return ""
    interval = ""
    if row.get(f"{metric}_low"):
        low, high = float(row[f"{metric}_low"]), float(row[f"{metric}_high"])
        interval = f" ({low:.3f}–{high:.3f})"
    star = "*" if metric in ("auc", "c") and row["significant"] == "yes" else ""
    return f"{float(row[metric]):.3f}{star}{interval}"


def _compute_mean_ranks(
    chosen: Mapping[str, Mapping[str, Mapping[str, str]]], tasks: Sequence[str]
) -> dict[str, float]:
    """Return the mean rank by AUC over tasks; 1 is best."""
    values = np.array([[float(of[task]["auc"]) for task in tasks] for of in chosen.values()])
    ranks = np.mean([rankdata(-values[:, n]) for n in range(len(tasks))], axis=0)
    return dict(zip(chosen, ranks.tolist(), strict=True))


def draw_figure(
    path: Path, study: Study, spec: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
) -> None:
    """Draw the AUC of every model of a table with its interval, a panel per task."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = study.name
    from matplotlib import pyplot

    chosen, tasks = select_rows(study, spec, rows), list(spec["tasks"])
    models = list(chosen)[::-1]
    width, height = 2.2 + 1.7 * len(tasks), 0.9 + 0.24 * len(models)
    figure, axes = pyplot.subplots(
        1, len(tasks), figsize=(width, height), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        for y, model in enumerate(models):
            row = chosen[model].get(task)
            if row is not None:
                color = "#b5381c" if model in study.references.values() else "#30536b"
                axis.plot([float(row["auc_low"]), float(row["auc_high"])], [y, y], color=color)
                axis.plot(float(row["auc"]), y, "o", color=color, markersize=4)
        axis.set_title(task, fontsize=9)
        axis.set_xlabel("AUC", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes[0][0].set_yticks(range(len(models)), models)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial:
        figure.savefig(partial, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
