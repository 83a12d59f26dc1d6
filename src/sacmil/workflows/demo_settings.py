"""The demonstration's settings, files, results and page.

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

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.atomic import atomic_write
from sacmil.errors import RunError
from sacmil.evaluation.html_page import render_page
from sacmil.evaluation.localization import Localization
from sacmil.evaluation.report import Report
from sacmil.slides.tiling import TileSpec
from sacmil.synthetic.slides import CLASSES, LayoutSettings, SyntheticSlide
from sacmil.training.config import DEFAULT_MODEL, TrainingConfig

EXPORTED_MODELS = (DEFAULT_MODEL, "abmil")
"""Models that are exported, drawn and shown in the viewer."""

_QUICK_LAYOUT = LayoutSettings(
    size=(1120, 1120),
    tissue_radius=520,
    cluster_radii=(80, 74, 70),
    glands=1,
    gland_radius=50,
    fat_radius=80,
    fat_cell=26,
    stroma_cells=300,
    lymphocytes=80,
)
_MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT_MODEL: {},
    "transmil": {"dim": 64, "heads": 4},
    "abmil": {"hidden": 64, "attention_dim": 32},
    "mean_pool": {"hidden": 64},
}


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of the demonstration."""

    slides: int = 60
    """Slides with tissue; two more fail on purpose."""
    folds: int = 3
    epochs: int = 16
    seed: int = 1
    """Of slides, folds and weights. Not 0, because models were chosen on slides of seed 0."""
    pictures: int = 3
    """Number of slides per class with heatmaps: the first ones, not the best."""
    amounts: LayoutSettings = field(default_factory=LayoutSettings)
    tiles: TileSpec = field(default_factory=lambda: TileSpec(mpp=0.5, patch_size=224))
    encoder: str = "lite0"

    @classmethod
    def make_quick(cls, **changed: Any) -> DemoSettings:
        """Return a small demonstration: every step, but its metrics mean nothing."""
        small: dict[str, Any] = {"slides": 8, "folds": 2, "epochs": 2, "pictures": 1}
        return cls(**{**small, "amounts": _QUICK_LAYOUT, **changed})

    def make_configs(self) -> dict[str, TrainingConfig]:
        """Return our model with its defaults and the others small, all trained in the same way."""
        training = {"epochs": self.epochs}
        return {
            name: TrainingConfig(model=name, options=options, training=training, seed=self.seed)
            for name, options in _MODEL_OPTIONS.items()
        }

    def to_json(self) -> str:
        """Return the settings as JSON, to recognise a folder of the same demonstration."""
        return json.dumps(asdict(self) | {"models": _MODEL_OPTIONS}, indent=1) + "\n"


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


class DemoBags(NamedTuple):
    """Bags of the slides, and slides without one."""

    files: dict[str, Path]
    """By slide."""
    failures: dict[str, str]
    """Reason by slide, for slides without a bag."""
    tiles: int


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Results of the demonstration."""

    folder: DemoFolder
    report: Report
    """Of the cross-validation."""
    localization: Mapping[str, Localization]
    """By exported model."""
    bags: DemoBags
    slides: Sequence[SyntheticSlide]
    illustrated_slides: Sequence[SyntheticSlide]
    new_predictions: Mapping[str, str]
    """Predictions of unlabelled slides, by slide."""
    steps_done: Mapping[str, int]
    """Amount of each step done by this run; 0 if everything existed."""


def write_page(result: DemoResult) -> None:
    """Write index.html atomically."""
    first_slides = {slide.label: slide for slide in reversed(result.illustrated_slides)}
    page = render_page(
        "demo.html",
        title="Where, not how many",
        result=result,
        classes=CLASSES,
        exported_models=EXPORTED_MODELS,
        first_slides=[slide for _, slide in sorted(first_slides.items())],
        marked=", ".join(s.slide_id for s in result.slides if s.artefact == "pen mark"),
        next_commands=list_next_commands(result.folder.out),
    )
    with atomic_write(result.folder.page) as partial:
        partial.write_text(page, encoding="utf-8")


def list_next_commands(out: Path) -> list[str]:
    """Return commands to run next."""
    return [
        f"sacmil view {out / 'results'}",
        f"sacmil evaluate {out / 'run'}",
        f"sacmil compare {out / 'run'}",
    ]
