"""Files of the demonstration.

::

    OUT/
    ├── index.html                 the report
    ├── predictions.csv            predictions of exported models; sacmil evaluate reads it
    ├── table.csv                  slides, patients, labels; sacmil crossval reads it
    ├── settings.json              settings; other settings need another folder
    ├── cohort/                    tissue, tiles, bags: see extraction/slide_request.py
    ├── run/                       the cross-validation: see results/__init__.py
    ├── evaluation/                tables and plots of it, report.html
    ├── onnx/<model>/part_<fold>/  exported models
    ├── new/                       unlabelled slides, and the output of sacmil predict
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
        """Folder that the viewer opens."""
        return self.out / "results"

    @property
    def slides(self) -> Path:
        """The synthetic slides."""
        return self.results / "slides"

    @property
    def truth(self) -> Path:
        """The outlines of their tumour clusters."""
        return self.results / "truth"

    def claim(self, settings: DemoSettings) -> None:
        """Reserve the folder for these settings; reject a folder with other contents."""
        stored, wanted = self.out / "settings.json", settings.to_json()
        if stored.is_file():
            found = stored.read_text(encoding="utf-8", errors="replace")
            if found.replace('"nest_radii"', '"cluster_radii"') != wanted:  # renamed since
                raise RunError(
                    f"{self.out}: holds a demonstration with other settings (see {stored.name}); "
                    "choose another `out`, or remove that folder"
                )
            return
        foreign = sorted(file.name for file in self.out.glob("*") if file.name[0] != ".")
        if foreign:
            raise RunError(
                f"{self.out}: holds {foreign[0]} and is not a demonstration; choose another `out`"
            )
        with atomic_write(stored) as partial:
            partial.write_text(wanted, encoding="utf-8")
