"""Every error sacmil raises on purpose, in one tree.

::

    SacMILError                 says what was found, what was expected, what to type next
    ├── BagError                arrays that do not make a bag: shapes, NaN, no instances
    │   └── InputError          a bag that does not fit the model, or an index that does not fit it
    ├── FormatError             a file that is not what its layout promises; names the file
    ├── SlideError              a slide that cannot be read, or not as asked; names the file
    │   ├── ResolutionError     µm per pixel is missing, absurd, or coarser than asked for
    │   └── NoTissueError       nothing on the slide looks like tissue
    ├── EncoderError            an encoder that is unknown, or whose weights are not there
    ├── ModelError
    │   ├── UnknownModelError   no model is registered under that name
    │   ├── OptionError         an option the model does not have, or a value it cannot take
    │   └── ModelFolderError    a model folder that is incomplete, damaged or from elsewhere
    ├── CohortError             labels, splits or bags that make no cohort; lists every problem
    ├── ConfigError             a setting that is unknown, or a value it cannot take
    ├── DeviceError             a device that is not there, or that torch cannot use
    ├── RunError                a run folder that is incomplete, or of another configuration
    └── MissingExtraError       an optional dependency that is not installed

    BagWarning                  a bag that works but probably is not what was meant
    CohortWarning               a cohort or split that works but may mislead
    PluginWarning               a package that adds members and cannot be loaded
    RunWarning                  a run that answers, though not all of it is finished
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

_MAX_PROBLEMS_SHOWN = 20
"""How many problems of a list are told."""
_MAX_VALUE_CHARACTERS = 80
"""Characters of a value that a message shows."""


class SacMILError(Exception):
    """The root: catch this to catch everything deliberate."""


class BagError(SacMILError, ValueError):
    """Arrays that do not make a bag."""


class InputError(BagError):
    """A bag that does not fit the model it is given to, or an index that does not fit a bag."""


class FormatError(SacMILError):
    """A file that is not what its layout promises."""


class SlideError(SacMILError):
    """A slide that cannot be read, or not as asked."""


class ResolutionError(SlideError):
    """Microns per pixel are missing, absurd, or coarser than asked for."""


class NoTissueError(SlideError):
    """Nothing on the slide looks like tissue."""


class EncoderError(SacMILError):
    """An encoder that is unknown, or whose weights are not there."""


class ModelError(SacMILError):
    """Anything wrong with asking for, saving or loading a model."""


class UnknownModelError(ModelError):
    """No model is registered under that name."""


class OptionError(ModelError, ValueError):
    """An option the model does not have, or a value it cannot take."""


class ModelFolderError(ModelError):
    """A model folder that is incomplete, damaged or from elsewhere."""


class CohortError(SacMILError):
    """Labels, splits or bags that do not make a cohort.

    Args:
        where: the file or folder at fault.
        problems: everything wrong with it, so that one look is enough to mend it all.
    """

    def __init__(self, where: object, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        shown = self.problems[:_MAX_PROBLEMS_SHOWN]
        left = len(self.problems) - len(shown)
        listed = "\n".join(f"  - {problem}" for problem in shown)
        more = f"\n  … and {left} more" if left else ""
        super().__init__(f"{where}: {len(self.problems)} to mend:\n{listed}{more}")


class ConfigError(SacMILError, ValueError):
    """A setting that is unknown, or a value it cannot take."""


class DeviceError(SacMILError):
    """A device that is not there, or that torch cannot use."""


class RunError(SacMILError):
    """A run folder that is incomplete, or of another configuration."""


class MissingExtraError(SacMILError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed: "
            f"pip install 'sacmil[{extra}]'"
        )


class BagWarning(UserWarning):
    """A bag that works but probably is not what was meant."""


class CohortWarning(UserWarning):
    """A cohort or split that works but may mislead."""


class PluginWarning(UserWarning):
    """A package that adds models, formats, encoders or readers cannot be loaded."""


class RunWarning(UserWarning):
    """A run that answers, though not all of it is finished."""


def shorten_value(value: object) -> str:
    """A value as Python writes it, for a message: a long one is cut.

    >>> shorten_value("abmil"), shorten_value([0] * 1000)
    ("'abmil'", '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,…')
    """
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 20]}…"


def explain_os_error(error: OSError, file: object = None) -> str:
    """Which file the system complained about, why, and what to do.

    Args:
        error: what was raised.
        file: the file at work, where the error itself does not name one.

    >>> explain_os_error(OSError(errno.ENOSPC, "No space left on device"), "out/a.h5")
    'out/a.h5: No space left on device; the disk is full: free some space, or choose another folder'
    """
    named = error.filename or file
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; the disk is full: free some space, or choose another folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason += "; look at its permissions, or choose another folder"
    return f"{named}: {reason}" if named else reason


def suggest_names(wrong: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known names, or all of them.

    >>> suggest_names("sacmil", ["abmil", "sac_mil"])
    "did you mean 'sac_mil' or 'abmil'?"
    >>> suggest_names("zebra", ["abmil", "sac_mil"])
    'known are: abmil, sac_mil'
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(wrong), names, n=2)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known are: {', '.join(names)}" if names else "it takes none"
