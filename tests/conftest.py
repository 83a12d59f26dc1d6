"""What several tests need: one thread each, a golden file, a bag of given size."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from drawn import drawn
from inline_workers import use_inline_workers
from onnx_registry import reused_registry
from ray_cluster import private_cluster

from sacmil import Bag

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""Otherwise products on a GPU may be rounded in another way on another stream."""

WHOLE_GOLDENS = os.environ.get("SACMIL_GOLDEN")
"""A folder of whole goldens; without it the trimmed ones of tests/golden/trim.py are used."""

gc.disable()  # nothing that collection makes is garbage; searching it took a third of that time


def pytest_collection_finish() -> None:
    """Keeps modules and test items out of every later search for garbage: a tenth of the time."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True)
def _one_thread_one_seed() -> None:
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack, for CUDA


@pytest.fixture
def inline_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does in this process what worker processes do, for tests of what is made by them."""
    use_inline_workers(monkeypatch)


@pytest.fixture(scope="session")
def onnx_registry() -> Iterator[None]:
    """Saves a second of every export, for tests that export."""
    with reused_registry():
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of the tests' own; one for all, as it takes seconds to start."""
    pytest.importorskip("ray")
    with private_cluster() as cluster:
        yield cluster


@pytest.fixture
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    """A golden by name, as arrays."""
    return _whole_golden if WHOLE_GOLDENS else _trimmed_golden


def _whole_golden(name: str) -> dict[str, np.ndarray]:
    with np.load(Path(WHOLE_GOLDENS) / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def _trimmed_golden(name: str) -> dict[str, np.ndarray]:
    with h5py.File(Path(__file__).parent / "golden" / "goldens.h5") as file:
        arrays = {key.replace("|", "/"): value[()] for key, value in file[name].items()}
    for line in arrays.pop("drawn", np.array([], np.uint8)).tobytes().decode().splitlines():
        key, rule, index, *shape = line.split()
        arrays[key] = drawn(tuple(map(int, shape)), rule, int(index))
    if "gradients" in arrays:
        names = arrays.pop("gradient_names").tobytes().decode().split("\n")
        arrays |= dict(zip(names, arrays.pop("gradients"), strict=True))
    for key in [key for key in arrays if key.endswith("@left")]:
        whole = key.removesuffix("@left")
        arrays[whole] = arrays.pop(key) @ arrays.pop(f"{whole}@right")
    return arrays


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
