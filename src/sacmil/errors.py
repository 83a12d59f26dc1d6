"""Every error that sacmil raises on purpose.

::

    SacMILError                 says what was found, what was expected and how to fix it
    ├── BagError                invalid arrays for a bag: wrong shapes, NaN, no instances
    │   └── InputError          a bag that does not fit the model, or an index that does not fit it
    ├── FormatError             a file that does not follow its layout; names the file
    ├── SlideError              a slide that cannot be read as requested; names the file
    │   ├── ResolutionError     µm per pixel is missing, absurd, or coarser than requested
    │   └── NoTissueError       nothing on the slide looks like tissue
    ├── EncoderError            an unknown encoder, or one whose weights are missing
    ├── ModelError
    │   ├── UnknownModelError   no model is registered under that name
    │   ├── UnsupportedTaskError   a model that cannot be trained for the task; an OptionError too
    │   └── ModelFolderError    a model folder that is incomplete, damaged or no model folder
    ├── CohortError             invalid labels, splits or bags; lists the problems
    │   └── UnknownColumnError  a column that was named and is not there; an OptionError too
    ├── OptionError             an unknown option of a model or a function, or an invalid value
    ├── ConfigError             an unknown setting of a configuration, or an invalid value
    ├── DeviceError             a device that is missing, or that torch cannot use
    ├── RunError                a run folder that is incomplete, or of another configuration
    └── MissingExtraError       an optional dependency that is not installed

    BagWarning                  a valid bag that is probably not what was intended
    CohortWarning               a valid cohort or split that may mislead
    PluginWarning               a plugin package that cannot be loaded
    RunWarning                  predictions of a run that is not completely finished
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_MAX_PROBLEMS_SHOWN = 20
"""Problems of a list that a message shows."""
_MAX_NAMES_SHOWN = 20
"""Known names that a message shows, of a longer list the nearest; a table may have thousands."""
_MAX_VALUE_CHARACTERS = 80
"""Characters of a value that a message shows."""


class SacMILError(Exception):
    """Base class of all errors of this package."""


class BagError(SacMILError, ValueError):
    """Invalid arrays for a bag."""


class InputError(BagError):
    """A bag that does not fit the model, or an index that does not fit the bag."""


class FormatError(SacMILError):
    """A file that does not follow its layout."""


class SlideError(SacMILError):
    """A slide that cannot be read as requested."""


class ResolutionError(SlideError):
    """Microns per pixel are missing, absurd, or coarser than requested."""


class NoTissueError(SlideError):
    """Nothing on the slide looks like tissue."""


class EncoderError(SacMILError):
    """An unknown encoder, or one whose weights are missing."""


class ModelError(SacMILError):
    """A problem with creating, saving or loading a model."""


class UnknownModelError(ModelError):
    """No model is registered under that name."""


class OptionError(SacMILError, ValueError):
    """An option that a model or a function does not have, or an invalid value."""


class UnsupportedTaskError(ModelError, OptionError):
    """A model that cannot be trained for a task."""


class ModelFolderError(ModelError):
    """A model folder that is incomplete, damaged or no model folder."""


class CohortError(SacMILError):
    """Invalid labels, splits or bags of a cohort.

    Args:
        where: the file or folder with the problems.
        problems: all of them, so that they can be fixed at once; the message shows the first 20.
    """

    def __init__(self, where: object, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        shown = self.problems[:_MAX_PROBLEMS_SHOWN]
        left = len(self.problems) - len(shown)
        listed = "\n".join(f"  - {problem}" for problem in shown)
        more = f"\n  … and {left} more" if left else ""
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"{where}: {count}:\n{listed}{more}")


class UnknownColumnError(CohortError, OptionError):
    """A column that was named and that the table does not have."""


class ConfigError(SacMILError, ValueError):
    """An unknown setting, or an invalid value."""


class DeviceError(SacMILError):
    """A device that is missing, or that torch cannot use."""


class RunError(SacMILError):
    """A run folder that is incomplete, or of another configuration."""


class MissingExtraError(SacMILError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed: "
            f"pip install 'sacmil[{extra}]'"
        )


@contextmanager
def require_extra(extra: str, purpose: str) -> Iterator[None]:
    """Name the extra to install if an import in the block fails."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(extra, purpose) from None


class BagWarning(UserWarning):
    """A valid bag that is probably not what was intended."""


class CohortWarning(UserWarning):
    """A valid cohort or split that may mislead."""


class PluginWarning(UserWarning):
    """A package that adds models, formats, encoders or readers cannot be loaded."""


class RunWarning(UserWarning):
    """Predictions of a run that is not completely finished."""


def shorten_value(value: object) -> str:
    """Return the repr of a value for a message, cut if it is long.

    >>> shorten_value("abmil"), shorten_value([0] * 1000)
    ("'abmil'", '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,…')
    """
    text = " ".join(repr(value).split())  # a frame or a model has lines
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 20]}…"


def format_count(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> format_count(1, "fold"), format_count(1200, "slide")
    ('1 fold', '1,200 slides')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_subject(number: int, noun: str) -> str:
    """Return a number, its noun and its verb.

    >>> format_subject(1, "patient"), format_subject(4, "slide")
    ('1 patient is', '4 slides are')
    """
    return f"{format_count(number, noun)} {'is' if number == 1 else 'are'}"


def check_type(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Reject an argument of another type.

    Args:
        name: of the argument.
        value: what was given.
        kinds: accepted types.
        expected: what to give, for the message.
    """
    if not isinstance(value, kinds):
        raise OptionError(f"`{name}` is {shorten_value(value)}; expected {expected}")


def explain_os_error(error: OSError, file: object = None) -> str:
    """Return a message with the file, the reason and how to fix it.

    Args:
        error: what was raised.
        file: the file in use, if the error itself names none.

    >>> explain_os_error(OSError(errno.ENOSPC, "No space left on device"), "out/a.h5")
    'out/a.h5: No space left on device; the disk is full: free some space, or choose another folder'
    """
    named = error.filename or file
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; the disk is full: free some space, or choose another folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason += "; check its permissions, or choose another folder"
    return f"{named}: {reason}" if named else reason


def suggest_names(wrong: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known names, or all of them.

    >>> suggest_names("sacmil", ["abmil", "sac_mil"])
    "did you mean 'sac_mil' or 'abmil'?"
    >>> suggest_names("zebra", ["abmil", "sac_mil"])
    'known are: abmil, sac_mil'
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(wrong), names, n=2)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known are: {list_names(names, near=str(wrong))}" if names else "it takes none"


def list_names(names: Sequence[str], *, near: str = "") -> str:
    """Return names for a message: of many the first 20, and how many more there are.

    Args:
        names: in the order to show them.
        near: a wrong name; of many names those like it come first.

    >>> list_names(["a", "b"])
    'a, b'
    >>> list_names([*map("gene{}".format, range(1000)), "OS"], near="os")[:10]
    'OS, gene0,'
    """
    shown = list(names)
    if near and len(shown) > _MAX_NAMES_SHOWN:
        wrong = near.lower()
        shown.sort(key=lambda name: _rank_similarity(name.lower(), wrong))
    left = len(shown) - _MAX_NAMES_SHOWN
    listed = ", ".join(shown[:_MAX_NAMES_SHOWN])
    return f"{listed} and {left} more" if left > 0 else listed


def _rank_similarity(name: str, wrong: str) -> tuple[bool, float]:
    """Return a key that sorts names with the wrong one in them first, then those most like it."""
    return wrong not in name, -difflib.SequenceMatcher(None, name, wrong).ratio()


def explain_validation_error(error: ValidationError) -> str:
    """Return the first problem that pydantic found, as one sentence.

    >>> from pydantic import TypeAdapter, ValidationError
    >>> try:
    ...     TypeAdapter(dict[str, int]).validate_python({"epochs": "x"})
    ... except ValidationError as error:
    ...     explain_validation_error(error)
    "epochs is 'x'; expected a valid integer, unable to parse string as an integer"
    """
    problem = error.errors(include_url=False)[0]
    where = ".".join(map(str, problem["loc"])) or "the content"
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where} is unknown"
    reason = problem["msg"].replace("Input should be", "expected")
    return f"{where} is {shorten_value(problem['input'])}; {reason}"
