"""A page shows what the cards of a model's members state, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from answering import write_model

from sacmil.deploy.load import load_ensembles
from sacmil.workflows.slide_report import ModelSummary


def facts(folder: Path, *metrics: dict[str, Any] | None) -> dict[str, str]:
    for part, found in enumerate(metrics):
        write_model(folder / "abmil" / "seed_0" / f"fold_{part}", seed=part, metrics=found)
    (ensemble,) = load_ensembles([folder])
    return dict(ModelSummary.from_ensemble(ensemble).facts)


def test_figures_come_with_what_they_were_measured_on(tmp_path: Path) -> None:
    shown = facts(tmp_path, {"slides": 23, "auc": 0.9125, "accuracy": 0.87, "brier": None})
    assert shown["Tested"] == "AUC 0.912, accuracy 0.870; on 23 test slides"
    assert shown["Trained on"].startswith("7 slides; 2 for validation; 3 for testing")


def test_of_members_the_mean_and_the_range_are_shown(tmp_path: Path) -> None:
    tested = facts(tmp_path, {"slides": 10, "auc": 0.8}, {"slides": 12, "auc": 0.9}, None)["Tested"]
    assert tested.startswith("AUC 0.850 (0.800 to 0.900); mean and range over 2 of 3 members")
    assert "22 in all" in tested
    assert "The ensemble was not tested" in tested


@pytest.mark.parametrize(
    "metrics",
    [None, {"auc": 0.9}, {"slides": "x", "auc": 0.9}, {"slides": 3}, {"slides": 3, "auc": [1]},
     {"slides": True, "auc": 0.9}, {"slides": 3, "auc": float("nan")}, {"slides": -1, "auc": 1}],
)  # fmt: skip
def test_a_card_without_valid_metrics_shows_none(
    tmp_path: Path, metrics: dict[str, Any] | None
) -> None:
    assert facts(tmp_path, metrics)["Tested"] == "not known: no metrics in the card"
