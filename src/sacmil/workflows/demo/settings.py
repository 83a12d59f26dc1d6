"""Size of the demonstration, and the models it trains."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from sacmil.slides.tiling import TileSpec
from sacmil.synthetic.slides import LayoutSettings
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


_MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT_MODEL: {},
    "transmil": {"dim": 64, "heads": 4},
    "abmil": {"hidden": 64, "attention_dim": 32},
    "mean_pool": {"hidden": 64},
}
