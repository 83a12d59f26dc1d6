"""A small separate distribution that adds a model, a format, an encoder and a reader to sacmil."""

from __future__ import annotations

from pathlib import Path

_MODEL = '''
"""A model of another lab."""
import torch
from sacmil.models import MILModel, Output, register_model

@register_model("median_pool")
class MedianPool(MILModel):
    """The median of the instances (another lab)."""

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.head = torch.nn.Linear(in_dim, num_classes)

    def aggregate(self, features, coords, plan):
        return Output(self.head(features.median(0).values), features.norm(dim=1))
'''
_FORMAT = '''
"""Bags of another lab: rows of numbers, the first two of them coordinates."""
import numpy as np
import sacmil

SUFFIXES = (".labbag",)

def matches(path):
    return path.suffix == ".labbag"

def read(path, hints):
    rows = np.fromfile(path).reshape(-1, 6)
    return sacmil.Bag(path.stem, rows[:, 2:].astype(np.float32), rows[:, :2], 256)
'''
_ENCODER = '''
"""An encoder of another lab: the mean color of a tile."""
import numpy as np
from sacmil.encoders import EncoderCard

class MeanColor:
    card = EncoderCard(
        name="mean_color", width=3, input_px=224, resample="nearest", mean=(0.0,) * 3,
        std=(1.0,) * 3, pooling="mean", mpp=0.5, license="MIT", weights="none",
    )

    def weights(self):
        return __file__

    def load(self, request):
        raise NotImplementedError("listing it is enough here")

ENCODERS = (MeanColor(),)
'''
_READER = '''
"""A reader of another lab."""
from sacmil.errors import SlideError

PRIORITY = 90
EXTENSIONS = frozenset({".labslide"})

def open_slide(path):
    raise SlideError(f"{path}: the reader of another lab was here")
'''
_ENTRY_POINTS = """
[sacmil.models]
lab = lab_plugin.model

[sacmil.formats]
labbag = lab_plugin.layout

[sacmil.encoders]
lab = lab_plugin.encoder

[sacmil.readers]
lab = lab_plugin.reader
"""


def install_plugin(site: Path) -> Path:
    """Write an installed distribution, lab-plugin 1.2, into a folder for sys.path."""
    files = {"model": _MODEL, "layout": _FORMAT, "encoder": _ENCODER, "reader": _READER}
    return _install(site, "lab", files, _ENTRY_POINTS)


def install_broken_plugin(site: Path) -> Path:
    """Write broken-plugin 1.2 into the folder; importing its model fails."""
    files = {"model": "import a_package_that_is_not_there"}
    return _install(site, "broken", files, "[sacmil.models]\nbroken = broken_plugin.model\n")


def _install(site: Path, name: str, files: dict[str, str], entry_points: str) -> Path:
    package = site / f"{name}_plugin"
    package.mkdir(parents=True)
    for module, text in {"__init__": "", **files}.items():
        (package / f"{module}.py").write_text(text, encoding="utf-8")
    facts = site / f"{name}_plugin-1.2.dist-info"
    facts.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}-plugin\nVersion: 1.2\n"
    (facts / "METADATA").write_text(metadata, encoding="utf-8")
    (facts / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    return site
