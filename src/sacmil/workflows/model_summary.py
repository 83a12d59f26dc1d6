"""The section about a model on a slide's page, from its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacmil.deploy.load import LoadedModel
from sacmil.workflows.input_requirements import InputRequirements

_METRIC_TITLES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
}
"""Metrics of cards that are shown, in this order, with their titles."""


@dataclass(frozen=True)
class ModelSummary:
    """Headings and texts about a model, in order."""

    name: str
    facts: Mapping[str, str]

    @classmethod
    def from_ensemble(cls, ensemble: LoadedModel) -> ModelSummary:
        """Return the summary of an ensemble from its members' cards."""
        card, several = ensemble.members[0].card, len(ensemble.members) > 1
        needs = InputRequirements.from_card(card, ensemble.name)
        cards = [member.card for member in ensemble.members]
        members = f"{len(cards)}, trained on different splits of the data" if several else "1"
        facts = {
            "Kind": card.model,
            "Members": members,
            "Classes": ", ".join(ensemble.classes),
            "Trained on": _describe_training(card.training)
            + (" (the first member)" if several else ""),
            "Tested": _describe_test([one.metrics for one in cards]),
            "Encoder": needs.encoder or "not known",
            "Tiles": _describe_tiles(needs),
            "Weights (SHA-256)": ensemble.hash,
            "Saved by": f"sacmil {card.sacmil_version}",
        }
        return cls(ensemble.name, facts)


def _describe_training(training: Mapping[str, Any]) -> str:
    slides = training.get("slides")
    if not isinstance(slides, dict) or "train" not in slides:
        return "not known: not in the card"
    phrases = [f"{slides['train']} slides"]
    if slides.get("val"):
        phrases.append(f"{slides['val']} for validation")
    if slides.get("test"):
        phrases.append(f"{slides['test']} for testing")
    return "; ".join(phrases)


def _describe_test(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Describe the test metrics of one model, or their mean and range over members."""
    counts = [one.get("slides") for one in metrics]
    known = [one for one, count in zip(metrics, counts, strict=True) if _is_number(count)]
    values = ", ".join(filter(None, (_format_metric(name, known) for name in _METRIC_TITLES)))
    if not values:
        return "not known: no metrics in the card"
    slides = sum(int(one["slides"]) for one in known)
    if len(metrics) == 1:
        return f"{values}; on {slides} test slides"
    tested = "members" if len(known) == len(metrics) else f"{len(known)} of {len(metrics)} members"
    return (
        f"{values}; mean and range over {tested}, each on its own test slides, {slides} in all. "
        "The ensemble was not tested."
    )


def _format_metric(name: str, metrics: Sequence[Mapping[str, Any]]) -> str:
    values = [float(one[name]) for one in metrics if _is_number(one.get(name))]
    if not values:
        return ""
    mean = f"{_METRIC_TITLES[name]} {sum(values) / len(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _describe_tiles(requirements: InputRequirements) -> str:
    if requirements.patch_px is not None:
        return f"{requirements.patch_px} pixels a side, µm per pixel unknown"
    if requirements.patch_um is None:
        return "not known"
    pixels = f", {requirements.tile_px} pixels" if requirements.tile_px else ""
    return f"{requirements.patch_um:.4g} µm a side{pixels}"
