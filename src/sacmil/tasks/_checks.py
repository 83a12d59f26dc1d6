"""Checks of what a task is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from sacmil.errors import OptionError
from sacmil.results import ID_COLUMNS

_TABLE_COLUMNS = (*ID_COLUMNS, "site")
"""Of predictions.csv and of cohorts, besides those of the task."""


def check_settings(
    kind: str, settings: Iterable[str], known: Sequence[str], learned: Sequence[str] = ()
) -> None:
    """Reject a setting that a task does not have.

    Args:
        kind: of the task.
        settings: names that were given.
        known: names of the settings that users choose.
        learned: names of those that only cards have.
    """
    for name in settings:
        if name not in (*known, *learned):
            close = get_close_matches(name, known, n=2)
            hint = (
                f"did you mean {' or '.join(map(repr, close))}?"
                if close
                else (f"expected {', '.join(f'`{one}`' for one in known)}")
            )
            raise OptionError(f"there is no setting {name!r} of the task {kind}; {hint}")


def check_loss(loss: object, known: Sequence[str]) -> None:
    """Reject a loss that a task does not have."""
    if loss not in known:
        close = get_close_matches(str(loss), known, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"`loss` is {loss!r}; expected {', '.join(known)}{hint}")


def check_column_names(argument: str, targets: Sequence[str], predictions: Sequence[str]) -> None:
    """Reject target columns whose names our tables have for something else.

    Args:
        argument: that names the targets, for messages.
        targets: columns of the true values.
        predictions: columns of the predictions.
    """
    for name in targets:
        if name in (*_TABLE_COLUMNS, *predictions):
            raise OptionError(
                f"`{argument}` has {name!r}, which is another column of the tables that sacmil "
                "writes; rename the column in your table"
            )
