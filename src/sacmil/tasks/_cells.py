"""Parses the cells of target columns; every problem is listed with its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.errors import suggest_names

if TYPE_CHECKING:
    import pandas

Floats = npt.NDArray[np.float64]
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_MAX_LOCATIONS = 5
_MAX_NUMBER = 1e30
"""Models predict in float32, which has no number above 3e38."""


def list_locations(locations: Sequence[object]) -> str:
    """Return the first few locations as text.

    >>> list_locations(["line 2", "line 7"])
    'line 2, line 7'
    """
    distinct = list(dict.fromkeys(map(str, locations)))  # slides share the row of their patient
    shown = ", ".join(distinct[:_MAX_LOCATIONS])
    left = len(distinct) - _MAX_LOCATIONS
    return f"{shown} and {left} more" if left > 0 else shown


def _list_rows(texts: pandas.Series, is_empty: pandas.Series) -> str:
    if is_empty.all():
        return "every row"
    return list_locations(texts.index[is_empty].tolist())


def parse_numbers(column: pandas.Series, *, may_be_empty: bool = False) -> tuple[Floats, list[str]]:
    """Return the numbers of a column, NaN where there is none, and the problems."""
    import pandas

    texts = column.astype(str).str.strip()
    is_empty = texts == ""
    numbers = pandas.to_numeric(texts.where(~is_empty), errors="coerce").to_numpy(np.float64)
    is_wrong = ~(np.abs(numbers) <= _MAX_NUMBER) & ~is_empty.to_numpy()
    problems = []
    if is_empty.any() and not may_be_empty:
        problems.append(
            f"{column.name} is empty in {_list_rows(texts, is_empty)}; expected a number, or "
            "leave out the rows"
        )
    wrong = texts[is_wrong]
    has_comma = wrong.map(lambda text: _DECIMAL_COMMA.fullmatch(text) is not None).astype(bool)
    if has_comma.any():
        commas, wrong = wrong[has_comma], wrong[~has_comma]
        problems.append(
            f"{column.name} has a decimal comma in {list_locations(commas.index.tolist())}, such "
            f"as {commas.iloc[0]!r}; use a decimal point"
        )
    problems += [
        f"{column.name} is {text!r} in {list_locations(wrong.index[wrong == text].tolist())}; "
        f"expected a number, at most {_MAX_NUMBER:g}"
        for text in dict.fromkeys(wrong)
    ]
    return np.where(is_wrong, np.nan, numbers), problems


def parse_levels(column: pandas.Series, levels: Sequence[str]) -> tuple[Floats, list[str]]:
    """Return the index of each cell among the levels, NaN where there is none, and the problems."""
    texts = column.astype(str).str.strip()
    index = _index_levels(levels)
    found = [index.get(text, index.get(_to_number(text), np.nan)) for text in texts]
    numbers = np.array(found, dtype=np.float64)
    problems = []
    if (is_empty := texts == "").any():
        problems.append(
            f"{column.name} is empty in {_list_rows(texts, is_empty)}; expected "
            f"{' or '.join(levels)}, or leave out the rows"
        )
    for text in dict.fromkeys(texts[np.isnan(numbers) & ~is_empty.to_numpy()]):
        where = list_locations(texts.index[texts == text].tolist())
        hint = suggest_names(text, list(levels))
        problems.append(f"{column.name} is {text!r} in {where}; {hint}")
    return numbers, problems


def _index_levels(levels: Sequence[str]) -> Mapping[str | float | None, float]:
    """Return the index of each level by its name, and by its number if all are numbers."""
    index: dict[str | float | None, float] = dict(zip(levels, range(len(levels)), strict=True))
    numbers = list(map(_to_number, levels))
    if None in numbers or len(set(numbers)) < len(levels):
        return index
    return index | dict(zip(numbers, range(len(levels)), strict=True))


def _to_number(text: str) -> float | None:
    """Return a number, which pandas spells 1.0 instead of 1; None for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def find_constant_columns(names: Iterable[str], targets: Floats) -> list[str]:
    """Return a problem for each column with fewer than two distinct values."""
    problems = []
    for name, values in zip(names, targets.T, strict=True):
        found = np.unique(values[~np.isnan(values)])
        if len(found) == 1:
            problems.append(f"{name} is {found[0]:g} in every row; expected different values")
        elif not len(found):
            problems.append(f"{name} is empty or unknown in every row; expected different values")
    return problems
