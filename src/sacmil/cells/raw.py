"""What a reader of a table of cells returns, before columns are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RawCells:
    """What a reader found, before columns are chosen."""

    path: Path
    frame: pandas.DataFrame
    """Text only."""
    coords: npt.NDArray[np.float64] | None = None
    """(N, 2) if the file has them outside the columns."""
    matrix_names: tuple[str, ...] = ()
    """Markers that the file has outside the columns."""
    read_matrix: Callable[[Sequence[str]], npt.NDArray[np.float32]] | None = None
