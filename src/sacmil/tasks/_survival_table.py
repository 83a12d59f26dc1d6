"""Finds and parses the columns of time and status, as clinical tables have them.

Nothing is assumed about a cell: what cannot be read is listed with its rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import OptionError, list_names, suggest_names
from sacmil.tasks._cells import list_locations, parse_numbers
from sacmil.tasks._status_name import explain_unclear_name, is_censoring, list_words

if TYPE_CHECKING:
    import pandas

Floats = npt.NDArray[np.float64]


class SurvivalColumns(NamedTuple):
    """Names of the columns in the user's table."""

    times: tuple[str, ...]
    """One; or two, until death and until the last contact, as in tables of the GDC."""
    event: str

    @property
    def time(self) -> str:
        """For messages."""
        return " or ".join(self.times)

    @property
    def is_censoring(self) -> bool:
        """Whether 1 means censored in the status column."""
        return is_censoring(self.event)


GDC_TIMES, GDC_EVENT = ("days_to_death", "days_to_last_follow_up"), "vital_status"
_ENDPOINTS = ("OS", "DSS", "PFS", "PFI", "DFS", "DFI")
_USUAL_COLUMNS = (
    SurvivalColumns(("survival_months",), "censorship"),
    SurvivalColumns(("survival_months_dss",), "censorship_dss"),
    SurvivalColumns(("survival_months_pfi",), "censorship_pfi"),
    SurvivalColumns(("os_survival_days",), "os_censorship"),
    *(SurvivalColumns((f"{name}_MONTHS",), f"{name}_STATUS") for name in _ENDPOINTS),
    *(SurvivalColumns((f"{name}.time",), name) for name in _ENDPOINTS),
    SurvivalColumns(GDC_TIMES, GDC_EVENT),
    SurvivalColumns(("time_label",), "status_label"),
    SurvivalColumns(("time",), "event"),
    SurvivalColumns(("time",), "status"),
    SurvivalColumns(("survival_time",), "event"),
    SurvivalColumns(("survival_days",), "event"),
)
"""Of MCAT, PANTHER, cBioPortal, TCGA-CDR, the GDC and STAMP; a table's first pair is taken."""

_YES = {"yes": True, "y": True, "true": True, "t": True}
_NO = {"no": False, "n": False, "false": False, "f": False}
_HAPPENED = (
    *("event", "dead", "deceased", "died", "death", "recurred", "recurrence", "progressed"),
    *("progression", "relapsed", "relapse", "recurred/progressed"),
)
_CENSORED = (
    *("alive", "living", "censored", "diseasefree", "disease free", "disease-free"),
    *("progression free", "progression-free", "no event", "not recurred", "no recurrence"),
)
_WORDS: dict[str, bool] = {**dict.fromkeys(_HAPPENED, True), **dict.fromkeys(_CENSORED, False)}
"""What a state means, whatever the column is called; True is an event."""
_PREFIX = re.compile(r"([01])\s*:\s*(.*)")
UNITS = ("days", "weeks", "months", "years")
_UNIT_WORDS = {
    **dict.fromkeys(("day", "days"), "days"),
    **dict.fromkeys(("week", "weeks", "wk", "wks"), "weeks"),
    **dict.fromkeys(("month", "months", "mo", "mos", "mth", "mths"), "months"),
    **dict.fromkeys(("year", "years", "yr", "yrs"), "years"),
}


def find_unit(columns: SurvivalColumns) -> str:
    """Return the unit in the name of the time column; empty if there is none.

    >>> find_unit(SurvivalColumns(("OS_MONTHS",), "OS_STATUS"))
    'months'
    """
    name = columns.times[0]
    if name.lower().endswith(".time"):  # of TCGA-CDR
        return "days"
    words = list_words(name)
    found = {_UNIT_WORDS[word] for word in words if word in _UNIT_WORDS}
    found |= {unit for unit in UNITS for word in words if word.endswith(unit)}
    return found.pop() if len(found) == 1 else ""


def find_columns(known: Sequence[str], time: str = "", event: str = "") -> SurvivalColumns:
    """Return the columns of time and status among those of a table.

    Args:
        known: all columns of the table.
        time: that of the time, if it is given.
        event: that of the status, if it is given.

    Raises:
        OptionError: a column is not given and has none of the usual names.
    """
    time, event = (_find_column(known, name) for name in (time, event))
    if time.lower() in GDC_TIMES and event.lower() in ("", GDC_EVENT):
        return find_gdc_columns(known)
    if time and event:
        return SurvivalColumns((time,), event)
    spelled = {name.lower(): name for name in reversed(known)}
    for usual in _USUAL_COLUMNS:
        names = [name.lower() for name in (*usual.times, usual.event)]
        if not all(name in spelled for name in names):
            continue
        if (time and names[:-1] != [time.lower()]) or (event and names[-1] != event.lower()):
            continue
        *times, status = (spelled[name] for name in names)
        return SurvivalColumns(tuple(times), status)
    what, option = "columns of time and status have usual names", "them by `time` and `event`"
    if time:
        what, option = f"column of the status beside {time} has a usual name", "it by `event`"
    elif event:
        what, option = f"column of the time beside {event} has a usual name", "it by `time`"
    listed = list_names(list(filter(None, known)), near=time or event)
    raise OptionError(f"no {what} among {listed}; name {option}")


def find_gdc_columns(known: Sequence[str]) -> SurvivalColumns:
    """Return the three columns of the GDC; each of its times is known of some patients only."""
    spelled = {name.lower(): name for name in reversed(known)}
    names = (*GDC_TIMES, GDC_EVENT)
    if missing := [name for name in names if name not in spelled]:
        raise OptionError(
            f"there is no column {' or '.join(missing)}; a table of the GDC needs {GDC_TIMES[0]} "
            f"of the dead, {GDC_TIMES[1]} of the others, and {GDC_EVENT}: add it"
        )
    *times, event = (spelled[name] for name in names)
    return SurvivalColumns(tuple(times), event)


def _find_column(known: Sequence[str], name: str) -> str:
    """Return a column that was named, in any case; empty if none was."""
    if not name or name in known:
        return name
    found = next((one for one in known if one.lower() == name.lower()), None)
    if found is None:
        hint = suggest_names(name, filter(None, known))
        raise OptionError(f"there is no column {name!r}; {hint}")
    return found


def parse_survival(rows: pandas.DataFrame, columns: SurvivalColumns) -> tuple[Floats, list[str]]:
    """Return time and event of each row (n, 2), and all problems.

    Args:
        rows: text cells; the index is the location of each row.
        columns: names of the columns.
    """
    events, problems = _parse_events(rows[columns.event])
    if len(columns.times) == 1:
        times, found = parse_numbers(rows[columns.times[0]])
    else:
        times, found = _parse_gdc_times(rows, columns, events)
    problems = found + problems
    if len(negative := rows.index[times < 0]):
        problems.append(
            f"{columns.time} is negative in {list_locations(negative.tolist())}; expected the time "
            "from diagnosis to the event or the last contact"
        )
    return np.stack([times, events], axis=1), problems


def _parse_events(column: pandas.Series) -> tuple[Floats, list[str]]:
    """Return 1 for an event, 0 for censored, NaN for what cannot be read, and the problems."""
    texts = column.astype(str).str.strip()
    inverted = is_censoring(str(column.name))
    read = {text: _parse_event(text, inverted=inverted) for text in dict.fromkeys(texts)}
    where = {text: list_locations(texts.index[texts == text].tolist()) for text in read}
    problems = []
    if "" in read:
        problems.append(
            f"{column.name} is empty in {where['']}; a missing status is not the same as censored: "
            "expected 1 or 0, or leave out the rows"
        )
    numbers = {_to_number(text) for text in read} - {None}
    expected = "1 for censored, 0 for the event" if inverted else "1 for the event, 0 for censored"
    if 2 in numbers and numbers <= {1, 2}:
        two = next(text for text in read if _to_number(text) == 2)
        problems.append(
            f"{column.name} is coded 1 and 2 (2 in {where[two]}), which tables use both ways; "
            f"expected {expected}"
        )
    else:
        problems += [
            f"{column.name} is {text!r} in {where[text]}; expected {expected}, or words such as "
            "dead and alive"
            for text, (_, event) in read.items()
            if text and event is None
        ]
    unclear = explain_unclear_name(str(column.name))
    if unclear and any(event is not None and _is_coded(text) for text, (_, event) in read.items()):
        problems.append(
            f"{column.name} is {unclear}; expected a column of the event, or the words dead and "
            "alive: make 1 the event and rename it"
        )
    forms = {form: text for text, (form, event) in reversed(read.items()) if event is not None}
    if len(forms) > 1:
        listed = " and ".join(f"{text!r} ({where[text]})" for text in forms.values())
        problems.append(f"{column.name} is written in several ways: {listed}; expected one")
    found = [read[text][1] for text in texts]
    return np.array([np.nan if event is None else event for event in found], np.float64), problems


def _parse_event(text: str, *, inverted: bool) -> tuple[str, bool | None]:
    """Return how a status is written, and whether it is an event; None if it cannot be read."""
    number = _to_number(text)
    if number is not None:
        return "number", bool(number) != inverted if number in (0, 1) else None
    if match := _PREFIX.fullmatch(text):
        event = (match[1] == "1") != inverted
        agrees = _WORDS.get(match[2].strip().lower(), event) == event
        return "number and word", event if agrees else None
    word = text.lower()
    if word in _WORDS:
        return "word", _WORDS[word]
    if word in (logical := _YES | _NO):
        return "yes or no", logical[word] != inverted
    return "other", None


def _is_coded(text: str) -> bool:
    """Whether a status that can be read has its meaning from the name of the column."""
    match = _PREFIX.fullmatch(text)
    return (match[2].strip() if match else text).lower() not in _WORDS


def _to_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_gdc_times(
    rows: pandas.DataFrame, columns: SurvivalColumns, events: Floats
) -> tuple[Floats, list[str]]:
    """Return days until death of the dead, and until the last contact of the others."""
    death, contact = columns.times
    blank = {"'--": "", "--": "", "not reported": "", "Not Reported": ""}
    pairs = [parse_numbers(rows[name].replace(blank), may_be_empty=True) for name in columns.times]
    (to_death, to_contact), problems = zip(*pairs, strict=True)
    found = [text for texts in problems for text in texts]
    for is_wrong, name, what in (
        ((events == 1) & np.isnan(to_death), death, "is empty for a death"),
        ((events == 0) & ~np.isnan(to_death), death, "is given for a patient who is alive"),
        ((events == 0) & np.isnan(to_contact), contact, "is empty for a patient who is alive"),
    ):
        if is_wrong.any():
            found.append(
                f"{name} {what} in {list_locations(rows.index[is_wrong].tolist())}; correct or "
                "leave out the rows"
            )
    return np.where(events == 1, to_death, to_contact), found
