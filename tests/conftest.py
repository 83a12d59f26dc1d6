"""What several tests need: one thread each, a golden file, a bag of given size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sacmil import Bag

GOLDEN = Path(os.environ.get("SACMIL_GOLDEN", Path(__file__).parent / "golden"))
"""Trimmed copies (tests/golden/trim.py); SACMIL_GOLDEN names a folder of whole ones."""


@pytest.fixture(autouse=True)
def _one_thread_one_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    """A golden file by name, as arrays; what a trimmed one shares with another is added."""

    def load(name: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
            arrays = dict(file)
        base = arrays.pop("base", None)
        return arrays if base is None else load(str(base)) | arrays

    return load


@pytest.fixture
def make_bag() -> Callable[..., Bag]:
    """A bag of random features at distinct places of an irregular grid."""

    def make(instances: int, dim: int = 16, seed: int = 0) -> Bag:
        random = np.random.default_rng(seed)
        side = int(np.ceil(np.sqrt(2 * instances)))
        places = random.choice(side * side, instances, replace=False)
        coords = np.stack(np.divmod(places, side), axis=1) * 256
        features = random.standard_normal((instances, dim)).astype(np.float32)
        return Bag(f"slide-{seed}", features, coords, patch_size=256)

    return make
