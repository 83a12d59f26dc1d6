"""Where the demonstration puts things.

::

    OUT/
    ├── index.html                 what was done, and what came of it
    ├── predictions.csv            what the exported models said; sacmil evaluate takes it
    ├── table.csv                  slides, patients, labels; sacmil crossval takes it
    ├── settings.json              what was asked for: another demonstration needs another folder
    ├── cohort/                    tissue, tiles, bags: see extraction/output_folder.py
    ├── run/                       the cross-validation: see results/__init__.py
    ├── evaluation/                tables and plots of it, report.html
    ├── onnx/<model>/part_<fold>/  exported models
    ├── new/                       slides nobody has labelled, and what sacmil predict says of them
    └── results/                   for sacmil view: see results/results_folder.py
        ├── slides/<slide>.tif
        └── truth/<slide>.geojson
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sacmil.atomic import atomic_write
from sacmil.errors import RunError
from sacmil.workflows.demo.settings import DemoSettings


@dataclass(frozen=True)
class DemoFolder:
    """The paths of one demonstration."""

    out: Path

    @property
    def page(self) -> Path:
        """The report."""
        return self.out / "index.html"

    @property
    def results(self) -> Path:
        """What the viewer opens."""
        return self.out / "results"

    @property
    def slides(self) -> Path:
        """The drawn slides."""
        return self.results / "slides"

    @property
    def truth(self) -> Path:
        """The outlines of their tumour nests."""
        return self.results / "truth"

    def claim(self, settings: DemoSettings) -> None:
        """Take the folder for these settings; refused where it holds another demonstration."""
        kept, wanted = self.out / "settings.json", settings.to_json()
        if kept.is_file():
            if kept.read_text(encoding="utf-8", errors="replace") != wanted:
                raise RunError(
                    f"{self.out}: holds a demonstration with other settings ({kept.name} there "
                    "says which); choose another --out, or remove that folder"
                )
            return
        foreign = sorted(file.name for file in self.out.glob("*") if file.name[0] != ".")
        if foreign:
            raise RunError(
                f"{self.out}: holds {foreign[0]} and is no demonstration; choose another --out"
            )
        with atomic_write(kept) as partial:
            partial.write_text(wanted, encoding="utf-8")
