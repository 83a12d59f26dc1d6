"""The summary of an extraction: what became of each slide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.extraction.table import ExtractionRow

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class ExtractionSummary:
    """The slides of one extraction."""

    out: Path
    """The output folder."""
    rows: Sequence[ExtractionRow]
    """One per slide, as in extraction.csv."""

    @property
    def done(self) -> list[str]:
        """Names of the slides that are done, now or by an earlier run."""
        return [row.slide_id for row in self.rows if row.status != "failed"]

    @property
    def bags(self) -> dict[str, Path]:
        """File of each bag, by slide."""
        return {row.slide_id: self.out / row.bag for row in self.rows if row.bag}

    @property
    def failures(self) -> dict[str, str]:
        """Reason of each failure, by slide."""
        return {row.slide_id: row.reason for row in self.rows if row.status == "failed"}

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per slide; ExtractionRow describes the columns."""
        import pandas

        frame = pandas.DataFrame([asdict(row) for row in self.rows])
        if not len(frame):
            return frame
        # "unknown" and empty cells become NaN
        names = ("tiles", "mpp", "seconds")
        return frame.assign(**{n: pandas.to_numeric(frame[n], errors="coerce") for n in names})
