"""The demonstration: a synthetic cohort whose label is where things are, and who can tell."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sacmil.atomic import whole_file
from sacmil.bag import Bag
from sacmil.cohorts.synthetic import LabelledBag, cluster
from sacmil.evaluation.metrics import accuracy, auc
from sacmil.formats import read_bag, write_bag
from sacmil.models import MILModel, Recipe, create_model, predict, save_model
from sacmil.results import Prediction
from sacmil.training.loop import fit
from sacmil.training.samples import samples_of
from sacmil.workflows.demo_page import check_can_draw, write_page

CLASSES = ("scattered", "clustered")
CONTESTANTS: dict[str, dict[str, Any]] = {
    "mean pooling": {"depth": 0, "position": "none"},
    "SAC-MIL, no position": {"position": "none"},
    "SAC-MIL": {},
}
"""All three are sac_mil: without blocks and position it is a mean over projected instances."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Settings:
    """How large the demonstration is."""

    slides: int = 240
    """In the cohort; the first two thirds train."""
    epochs: int = 10
    seed: int = 0
    cohort: dict[str, Any] = field(
        default_factory=lambda: {
            "instances": (200, 400),
            "dim": 16,
            "contrast": 4.0,
            "tumour_share": 0.2,
            "clusters": 1,
        }
    )
    model: dict[str, Any] = field(default_factory=lambda: {"dim": 64, "k": 16})


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    parameters: int
    accuracy: float
    auc: float


def run_demo(out: Path, settings: Settings, progress: Progress) -> list[Row]:
    """Make a cohort, train each contestant on it, and write the report folder.

    Args:
        out: the report folder: bags, models, predictions.csv, metrics.csv, index.html.
        settings: how large.
        progress: told of every bag written and every epoch trained.
    """
    check_can_draw()
    cohort = _cohort(out / "bags", settings, progress)
    cut = 2 * len(cohort) // 3
    training, test = cohort[:cut], cohort[cut:]
    rows, answers = [], {}
    for name, options in CONTESTANTS.items():
        model = _train(name, options, training, settings, progress)
        save_model(out / "models" / name.replace(" ", "_"), model, classes=CLASSES)
        answers[name] = [predict(model, bag) for bag, _ in test]
        rows.append(_row(name, model, answers[name], [label for _, label in test]))
    _write_csv(out / "metrics.csv", [vars(row) for row in rows])
    _write_csv(out / "predictions.csv", _prediction_rows(answers, [label for _, label in test]))
    write_page(out / "index.html", rows, test, answers["SAC-MIL"])
    return rows


def _cohort(folder: Path, settings: Settings, progress: Progress) -> list[LabelledBag]:
    """The cohort as a user would have it: written, then read back."""
    made = cluster(settings.slides, seed=settings.seed, **settings.cohort)
    labelled = []
    for number, (bag, label) in enumerate(made, start=1):
        file = folder / f"{bag.slide_id}.h5"
        write_bag(file, bag)
        labelled.append(LabelledBag(read_bag(file), label))
        progress("writing bags", number, len(made))
    return labelled


def _train(
    name: str,
    options: dict[str, Any],
    training: Sequence[LabelledBag],
    settings: Settings,
    progress: Progress,
) -> MILModel:
    bags: list[Bag] = [bag for bag, _ in training]
    labels = [label for _, label in training]
    torch.manual_seed(settings.seed)
    model = create_model(
        "sac_mil", in_dim=bags[0].dim, num_classes=len(CLASSES), **settings.model | options
    )
    recipe = Recipe(
        optimiser="adamw",
        lr=3e-3,
        weight_decay=1e-2,
        schedule="cosine",
        warmup_epochs=1,
        epochs=settings.epochs,
        accumulate=4,
    )
    fitted = fit(
        model,
        samples_of(model, bags, labels),
        recipe,
        seed=settings.seed,
        tell=lambda line: progress(f"training {name}", line.epoch, recipe.epochs),
    )
    return fitted.model


def _row(name: str, model: MILModel, answers: Sequence[Prediction], labels: list[int]) -> Row:
    return Row(
        name=name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        accuracy=accuracy(labels, [answer.label for answer in answers]),
        auc=auc(labels, [answer.probabilities[1] for answer in answers]),
    )


def _prediction_rows(
    answers: dict[str, list[Prediction]], labels: list[int]
) -> list[dict[str, Any]]:
    return [
        {"slide_id": answer.slide_id, "model": name, "label": CLASSES[label]}
        | {f"p_{c}": f"{p:.6f}" for c, p in zip(CLASSES, answer.probabilities, strict=True)}
        for name, predictions in answers.items()
        for answer, label in zip(predictions, labels, strict=True)
    ]


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
