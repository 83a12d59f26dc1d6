"""The torch engine: normalisation, and computation on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sacmil.encoders import load_encoder
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._network import NetworkSource
from sacmil.encoders._torch import GPUQueue, TileNetwork, resize_tiles


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


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [256, 300, 100])
def test_tiles_resized_on_the_device_are_those_of_pillow(mode: str, side: int) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    found = resize_tiles(torch.from_numpy(noise), 224, mode, torch.float32).numpy().astype(int)
    resampling = Image.Resampling[mode.upper()]
    for tile, ours in zip(noise, found, strict=True):
        expected = np.asarray(Image.fromarray(tile).resize((224, 224), resampling)).astype(int)
        difference = np.abs(ours - expected)
        assert difference.max() <= 2, "more than rounding twice can explain, even on noise"
        assert difference.mean() < 0.2


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_each_color_is_resized_separately_along_rows_and_then_along_columns(mode: str) -> None:
    tiles = torch.randint(0, 256, (3, 40, 40, 3), dtype=torch.uint8)
    planes = tiles.permute(0, 3, 1, 2).float()
    for size in ((40, 23), (23, 23)):
        planes = F.interpolate(planes, size, mode=mode, antialias=True).round().clamp(0, 255)
    found = resize_tiles(tiles, 23, mode, torch.float32)
    assert (found != planes.permute(0, 2, 3, 1)).float().mean() < 1e-3, "sums in another order"
    assert (found - planes.permute(0, 2, 3, 1)).abs().max() <= 1


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_resized_values_are_whole_grey_levels_even_for_black_next_to_white(
    mode: str, dtype: torch.dtype
) -> None:
    tiles = 255 * torch.randint(0, 2, (2, 64, 64, 3), dtype=torch.uint8)
    tiles[1] = 255
    found = resize_tiles(tiles, 56, mode, dtype).float()
    assert found.min() >= 0
    assert found.max() <= 255
    assert found.equal(found.round())
    assert found[1].eq(255).all(), "white stays white"
