"""Explains predictions in plain words, for the page of a slide, and formats their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sacmil.results import StoredPrediction

CLEAR_PROBABILITY, LEANING_PROBABILITY = 0.9, 0.7
"""Minimum probability of a clear prediction, and of a leaning one."""
_MAX_EXPONENT = 12
"""Of ten, in numbers that are written without an exponent."""
_LARGE_SPREAD = 0.15
"""Minimum spread at which the page points out disagreement."""


def format_probability(probability: float) -> str:
    """Format a probability, so that rounding never makes it certain.

    >>> format_probability(0.5), format_probability(0.9996), format_probability(0.0002)
    ('0.50', '> 0.99', '< 0.01')
    """
    if probability > 0.99:
        return "> 0.99"
    return "< 0.01" if probability < 0.01 else f"{probability:.2f}"


def format_significant(value: float, sign: str = "") -> str:
    """Format a number of any size with four significant digits, and all digits before the point.

    >>> format_significant(23.456), format_significant(12345.678), format_significant(0.00012346)
    ('23.46', '12346', '0.0001235')
    """
    exponent = int(f"{value:.3e}".partition("e")[2]) if math.isfinite(value) else 0
    if abs(exponent) > _MAX_EXPONENT:
        return f"{value:{sign}.3e}"
    return f"{value:{sign}.{max(0, 3 - exponent)}f}"


def format_number(value: float) -> str:
    """Format a number with four significant digits, without zeros at the end.

    >>> format_number(5.0), format_number(0.25), format_number(12345.678)
    ('5', '0.25', '12346')
    """
    digits, exponent, power = format_significant(value).partition("e")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + exponent + power


def describe_prediction(classes: Sequence[str], prediction: StoredPrediction) -> str:
    """Describe a prediction in plain words.

    Args:
        classes: their names.
        prediction: prediction of one model or an ensemble.
    """
    order = sorted(range(len(classes)), key=lambda c: -prediction.values[c])
    first, second = order[:2]
    best = prediction.values[first]
    if prediction.thresholds:
        return _describe_decision(classes, prediction)
    if best >= CLEAR_PROBABILITY:
        count = len(classes) - 1
        others = classes[second] if count == 1 else f"the {count} other classes"
        words = f"The model clearly favours {classes[first]} over {others}"
    elif best >= LEANING_PROBABILITY:
        words = f"The model leans towards {classes[first]}, but not clearly"
    else:
        words = f"The model is undecided between {classes[first]} and {classes[second]}"
    return (
        f"{words} (probability {format_probability(best)}). "
        f"{_describe_agreement(classes, prediction, first)}{CAUTION}"
    )


def _describe_decision(classes: Sequence[str], prediction: StoredPrediction) -> str:
    """Describe a calibrated prediction of two classes, which a threshold decides."""
    thresholds = prediction.thresholds or (0.5,)
    found, threshold = prediction.values[1], thresholds[0]
    first = int(found >= threshold)
    side = "not below" if first else "below"
    return (
        f"The model predicts {classes[first]}: the calibrated probability of {classes[1]} is "
        f"{found:.3f}, {side} the threshold of {threshold:.3f}. "
        f"{_describe_agreement(classes, prediction, first)}{CAUTION}"
    )


CAUTION = (
    "This number is the model's confidence, not the probability of a disease. It depends on the "
    "slides the model was trained on, and models are often over-confident."
)


VALUE_CAUTION = (
    "This is an estimate, not a measurement. It depends on the slides the model was trained on, "
    "and models often miss extreme values."
)


def _describe_agreement(classes: Sequence[str], prediction: StoredPrediction, first: int) -> str:
    count = len(prediction.members)
    if count == 1 or prediction.spread is None:
        return ""
    in_favor = sum(_find_predicted(one, prediction) == first for one in prediction.members)
    given = [one[first] for one in prediction.members]
    everyone = "Both" if count == 2 else f"All {count}"
    agreed = f"{everyone} members agree"
    if in_favor < count:
        agreed = f"{in_favor} of {count} members predict {classes[first]}"
    low, high = format_probability(min(given)), format_probability(max(given))
    spread = f"(spread {prediction.spread[first]:.2f})"
    text = f"{agreed}; their probabilities range from {low} to {high} {spread}. "
    differs = "Their confidence differs a lot" if in_favor == count else "They disagree a lot"
    return text + (f"{differs}: look closely. " if prediction.spread[first] > _LARGE_SPREAD else "")


def _find_predicted(values: Sequence[float], prediction: StoredPrediction) -> int:
    """Return the class that a member predicts, by the threshold of the ensemble if there is one."""
    if prediction.thresholds:
        return int(values[1] >= prediction.thresholds[0])
    return max(range(len(values)), key=values.__getitem__)
