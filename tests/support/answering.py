"""Models and bags to answer: small ones, whose card says which bags they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sacmil import Bag, EncoderId, create_model, save_model, write_bag
from sacmil.card import anonymized_id

DIM = 6
CLASSES = ("normal", "tumour")
ENCODER = EncoderId("lite0", "00ff00ff00ff00ff")
BAGS = {
    "encoder": ENCODER.name,
    "encoder_hash": ENCODER.hash,
    "dim": DIM,
    "patch_um": 128.0,
    "tile_px": 256,
}


def write_model(
    folder: Path,
    seed: int = 0,
    *,
    kind: str = "abmil",
    classes: tuple[str, ...] | None = CLASSES,
    bags: dict[str, Any] | None = BAGS,
    seen: tuple[str, ...] = (),
    metrics: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A model folder."""
    torch.manual_seed(seed)
    model = create_model(kind, **({"in_dim": DIM, "num_classes": 2} | options))
    marks = [anonymized_id("slide", slide_id) for slide_id in seen]
    notes = {"training": {"slides": {"train": 7, "val": 2, "test": 3}, "seen": marks}}
    notes |= ({"bags": bags} if bags else {}) | ({"metrics": metrics} if metrics else {})
    save_model(folder, model, classes=classes, notes=notes)
    return folder


def write_run(folder: Path, parts: int = 3, **options: Any) -> Path:
    """A run of one model, as sacmil crossval leaves it."""
    for part in range(parts):
        write_model(folder / "abmil" / "seed_0" / f"fold_{part}", seed=part, **options)
    return folder


def make_bag(slide_id: str, seed: int = 0, **changes: Any) -> Bag:
    """A bag those models were made for."""
    random = np.random.default_rng(seed)
    coords = np.stack(np.divmod(random.permutation(36)[:12], 6), axis=1) * 256
    features = random.standard_normal((12, DIM)).astype(np.float32)
    facts = {"mpp": 0.5, "tile_px": 256, "encoder": ENCODER, "slide_size": (1600, 1600)}
    return Bag(slide_id, features, coords, **({"patch_size": 256} | facts | changes))


def write_bags(folder: Path, *names: str, **changes: Any) -> Path:
    """A folder of them."""
    for seed, name in enumerate(names):
        write_bag(folder / f"{name}.h5", make_bag(name, seed, **changes))
    return folder
