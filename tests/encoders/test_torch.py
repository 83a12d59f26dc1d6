"""The torch engine: normalisation, and computation on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sacmil.encoders import load_encoder
from sacmil.encoders._gpu_queue import GPUQueue
from sacmil.encoders._network import EncoderRequest, NetworkSource
from sacmil.encoders._torch import TileNetwork


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiles_are_normalised_in_float32_and_then_halved(
    tiny: NetworkSource, dtype: torch.dtype
) -> None:
    network = TileNetwork(torch.nn.Identity(), tiny.card)
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3)
    expected = network(levels).to(dtype).float()
    network.dtype = dtype
    for tiles in (levels, levels.to(torch.float16)):
        found = network(tiles)
        last_bit = torch.finfo(dtype).eps
        torch.testing.assert_close(found, expected, rtol=last_bit, atol=1e-6)
        assert (found != expected).sum() <= 4, "ties of float32's last bit"


def test_a_buffer_for_tiles_is_writable(tiny: NetworkSource) -> None:
    buffer = tiny.load(EncoderRequest(random_weights=True)).allocate_buffer(1000)
    assert (buffer.shape, buffer.dtype) == ((1000,), np.uint8)
    buffer[:] = 3


@pytest.mark.gpu
def test_a_buffer_for_a_gpu_is_pinned(tiny: NetworkSource) -> None:
    buffer = tiny.load(EncoderRequest(random_weights=True, device="cuda:0")).allocate_buffer(10**6)
    assert torch.from_numpy(buffer).is_pinned()


@pytest.mark.gpu
def test_on_a_gpu_half_precision_is_close_to_single_precision_in_two_threads(
    make_tiles: Callable,
) -> None:
    on_gpu = load_encoder("resnet50", random_weights=True, device="cuda:0")
    on_cpu = load_encoder("resnet50", random_weights=True, engine="torch")
    assert (on_gpu.precision, on_gpu.engine) == ("float16", "torch")
    tiles = make_tiles(8)
    expected = on_cpu.encode(tiles)
    with ThreadPoolExecutor(2) as pool:
        for features in pool.map(on_gpu.encode, [tiles] * 20):
            assert np.abs(features - expected).max() / np.abs(expected).max() < 0.01


@pytest.mark.gpu
def test_a_replayed_batch_has_the_bytes_of_a_computed_one(make_tiles: Callable) -> None:
    encoder = load_encoder("resnet50", random_weights=True, device="cuda:0")
    batches = [make_tiles(8, 256), make_tiles(8, 256)[::-1].copy(), make_tiles(5, 256)]
    encoder._queue._can_capture = False
    computed = [encoder.encode(tiles) for tiles in batches]
    encoder._queue._can_capture = True
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(encoder.encode, batches * 20))
    assert encoder._queue._captured is not None
    for features, expected in zip(found, computed * 20, strict=True):
        assert np.array_equal(features, expected)


@pytest.mark.gpu
def test_a_network_that_depends_on_values_is_computed_each_time(
    tiny: NetworkSource, make_tiles: Callable
) -> None:
    encoder = tiny.load(EncoderRequest(random_weights=True, device="cuda:0"))
    plain = encoder._queue._compute
    encoder._queue._compute = lambda tiles: plain(tiles) * (1 + 0 * plain(tiles).sum().item())
    tiles = make_tiles(4, 32)
    expected = encoder.encode(tiles)
    for _ in range(3):
        assert np.array_equal(encoder.encode(tiles), expected)
    assert not encoder._queue._can_capture
    assert torch.rand(3, device="cuda:0").isfinite().all(), "and random numbers still work"


class _FakeGraph:
    """Stands in for a captured graph where there is no GPU."""

    def __init__(self, tiles: torch.Tensor) -> None:
        self.inputs = tiles

    def replay(self, tiles: torch.Tensor) -> str:
        return "replayed"


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> GPUQueue:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    made = GPUQueue(torch.device("cpu"), lambda tiles: "computed")
    monkeypatch.setattr(made, "_capture", _FakeGraph)
    return made


def run_batches(queue: GPUQueue, sizes: list[int]) -> list[str]:
    return [queue._compute_features(torch.empty(size, 2, 2, 3)) for size in sizes]


def test_a_size_is_replayed_from_its_second_time_in_a_row(queue: GPUQueue) -> None:
    assert run_batches(queue, [8, 3, 8, 8, 3, 8]) == ["computed"] * 3 + [
        "replayed",
        "computed",
        "replayed",
    ]


def test_only_larger_batches_replace_the_captured_graph(queue: GPUQueue) -> None:
    assert run_batches(queue, [8, 8, 3, 3, 3, 8]) == [
        "computed",
        "replayed",
        *["computed"] * 3,
        "replayed",
    ]
    assert run_batches(queue, [9, 9, 8]) == ["computed", "replayed", "computed"]


def test_a_failed_capture_is_not_tried_again(
    queue: GPUQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail_capture(tiles: torch.Tensor) -> None:
        tried.append(len(tiles))
        queue._can_capture = False

    monkeypatch.setattr(queue, "_capture", fail_capture)
    assert run_batches(queue, [8] * 5) == ["computed"] * 5
    assert tried == [8]
