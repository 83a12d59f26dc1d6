"""Limits on the memory and time that reading one file may take, the same in every command."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path

from sacmil.errors import ConfigError, FormatError

MAX_BAG_VARIABLE = "SACMIL_MAX_BAG_GB"
"""The environment variable that raises the size limit of a bag, in GiB."""
BAG_LIMIT_S = 600.0
"""Seconds that reading one bag may take."""

_GIB = 2**30
_DEFAULT_MAX_GIB = 4.0
_MAX_RATIO = 100
"""Largest ratio of declared to stored bytes. Compressed features reach 10; 100 leaves a margin."""
_MAX_UNCHECKED_BYTES = 16 * 2**20
"""Arrays up to this size may be stored in any number of bytes: constant labels compress well."""
_COPIES_IN_MEMORY = 3
"""Copies of a bag in the process that reads it: the array, its check, its message."""


def max_bag_bytes() -> int:
    """Return the bytes that the arrays of one file may take in memory."""
    text = os.environ.get(MAX_BAG_VARIABLE, "")
    try:
        size = float(text) if text else _DEFAULT_MAX_GIB
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise ConfigError(
            f"the environment variable {MAX_BAG_VARIABLE} is {text!r}; expected a number of GiB "
            f"above zero, such as {MAX_BAG_VARIABLE}=16"
        )
    return int(size * _GIB)


def max_worker_bytes() -> int:
    """Return the bytes of address space for a process that reads untrusted files."""
    return _COPIES_IN_MEMORY * max(max_bag_bytes(), int(_DEFAULT_MAX_GIB * _GIB))


def check_declared_size(path: str | Path, name: str, declared: int, stored: int) -> None:
    """Reject an array that needs far more memory than its file stores, before it is read.

    Args:
        path: the file, for the message.
        name: the array or arrays, for the message.
        declared: bytes in memory.
        stored: bytes in the file.

    Raises:
        FormatError: the array is too large, or almost none of it was written.
    """
    if declared > max(_MAX_UNCHECKED_BYTES, _MAX_RATIO * stored):
        raise FormatError(
            f"{path}: {name} declares {_format_size(declared)} but stores {_format_size(stored)}; "
            f"expected at most {_MAX_RATIO} times what is stored: the file is incomplete or "
            "damaged, write it again"
        )
    if declared > max_bag_bytes():
        raise FormatError(
            f"{path}: {name} needs {_format_size(declared)} of memory; expected at most "
            f"{_format_size(max_bag_bytes())} for one bag: split the slide, or raise the limit "
            f"with the environment variable {MAX_BAG_VARIABLE}={math.ceil(declared / _GIB)}"
        )


def check_zip_size(path: Path) -> None:
    """Reject a zip archive, as numpy.savez and torch.save write, that is too large unpacked.

    Raises:
        FormatError: see check_declared_size. A file that is no archive passes: its reader
            reports that.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return
    unpacked = sum(member.file_size for member in members)
    check_declared_size(path, "its content", unpacked, sum(m.compress_size for m in members))


def _format_size(count: int) -> str:
    """Format a number of bytes.

    >>> _format_size(6144), _format_size(5 * 2**30)
    ('6.0 KiB', '5.0 GiB')
    """
    power = min(max(count.bit_length() - 1, 0) // 10, 3)
    if power == 0:
        return f"{count} bytes"
    return f"{count / 1024**power:,.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"
