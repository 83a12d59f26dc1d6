"""Read files of numpy.save and numpy.savez, without unpickling."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError
from sacmil.limits import check_declared_size, check_zip_size


def load(path: Path, key: str | None = None) -> npt.NDArray[Any]:
    """Return the array in a .npy file, or the one called ``key`` in a .npz file."""
    try:
        check_zip_size(path)
        with path.open("rb") as file:
            check_declared_size(path, "the file", *[os.fstat(file.fileno()).st_size] * 2)
            found = np.load(file, allow_pickle=False)
            return np.asarray(found if key is None else found[key])
    except FileNotFoundError:
        raise FormatError(f"{path}: there is no such file") from None
    except FormatError:
        raise
    # numpy can raise almost any error for a damaged file: its header is parsed as Python.
    except Exception as error:
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(
            f"{path}: cannot be read as numpy arrays ({detail}); expected a file of "
            f"{'numpy.save' if key is None else 'numpy.savez'} that holds numbers only, write or "
            "copy it again"
        ) from error
