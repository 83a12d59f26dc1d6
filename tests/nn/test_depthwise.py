"""Convolutions and their gradients against torch's own in float64."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from sacmil.nn.depthwise import convolve_grid, convolve_rows

ROWS = [1, 2, 16, 33, 63, 64, 65, 255, 256, 257, 300]


def torchs(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    kernel = taps[:, None, :, None]
    return F.conv2d(x[None], kernel, padding=(taps.shape[1] // 2, 0), groups=len(x))[0]


def along(rows: int, taps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, 3, 5, dtype=torch.float64).transpose(0, 1)  # as heads of attention lie
    return x, torch.randn(3, taps, dtype=torch.float64), torch.randn(3, rows, 5).double()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("taps", [1, 33])
def test_along_rows_is_torchs_convolution_with_its_gradients(rows: int, taps: int) -> None:
    *inputs, grad = along(rows, taps)
    inputs = [each.requires_grad_() for each in inputs]
    found, expected = convolve_rows(*inputs), torchs(*inputs)
    torch.testing.assert_close(found, expected)
    both = [torch.autograd.grad(each, inputs, grad) for each in (found, expected)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rows", ROWS)
def test_single_precision_keeps_its_digits(rows: int) -> None:
    """Torch's own gradient of the taps is wrong with 256 rows, on some processors."""
    x, taps, grad = along(rows, 33)
    exact, found = (
        torch.autograd.grad(convolve_rows(x.to(kind), each), each, grad.to(kind))[0]
        for kind in (torch.float64, torch.float32)
        for each in [taps.to(kind).requires_grad_()]
    )
    assert float((found - exact).norm() / exact.norm()) < 1e-5


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (5, 16), (4, 17), (20, 50)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_on_a_grid_gradients_are_torchs(
    shape: tuple[int, int], layout: torch.memory_format
) -> None:
    grid = torch.randn(2, 4, *shape, dtype=torch.float64).to(memory_format=layout)
    parts = [grid, torch.randn(4, 1, 7, 3).double(), torch.randn(4).double()]
    parts = [part.requires_grad_() for part in parts]
    grad = torch.randn(2, 4, *shape, dtype=torch.float64)
    usual = F.conv2d(*parts, padding=(3, 1), groups=4)
    both = [torch.autograd.grad(each, parts, grad) for each in (convolve_grid(*parts), usual)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("call", [convolve_rows, convolve_grid])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_under_autocast_gradients_are_close(call: Callable, *, inside: bool) -> None:
    x, taps, _ = (each.float() for each in along(70, 33))
    parts = (
        [x, taps] if call is convolve_rows else [x[None], torch.randn(3, 1, 7, 7), torch.randn(3)]
    )
    parts = [part.requires_grad_() for part in (parts[0].bfloat16(), *parts[1:])]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = call(*parts).float().square().sum()
        found = torch.autograd.grad(loss, parts) if inside else None
    found = found or torch.autograd.grad(loss, parts)
    exact = torch.autograd.grad(call(*(part.double() for part in parts)).square().sum(), parts)
    for one, other in zip(found, exact, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    "dynamic",
    [
        pytest.param(False, id="each number of rows"),
        pytest.param(None, id="any number of rows"),
        pytest.param(True, id="any shape"),
    ],
)
def test_a_compiler_has_the_same_gradient(*, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(convolve_rows, backend="aot_eager", dynamic=dynamic)
    # One block, whole blocks, and others. One dynamic graph is enough for the last two.
    for rows in (271, 301) if dynamic is None else (46, 256, 300):
        x, taps, grad = (each.float() for each in along(rows, 33))
        if dynamic is None:
            torch._dynamo.mark_dynamic(x, 1)
        x, taps = x.requires_grad_(), taps.requires_grad_()
        both = [
            torch.autograd.grad(call(x, taps), (x, taps), grad)
            for call in (convolve_rows, compiled)
        ]
        for one, other in zip(*both, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [256, 20_224])
def test_a_gpu_gives_the_same(kind: torch.dtype, rows: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x, taps = torch.randn(8, rows, 64, device="cuda"), torch.randn(8, 33, device="cuda")
    grid = torch.randn(1, 64, rows // 16, 16, device="cuda")
    kernel, bias = torch.randn(64, 1, 7, 7, device="cuda"), torch.randn(64, device="cuda")
    for call, parts in ((convolve_rows, [x, taps]), (convolve_grid, [grid, kernel, bias])):
        found, exact = (
            [out, *torch.autograd.grad(out, given, out)]
            for each in (kind, torch.float64)
            for given in [[part.to(kind).to(each).requires_grad_() for part in parts]]
            for out in [call(*given)]
        )
        for one, other in zip(found, exact, strict=True):
            assert float(((one - other).norm() / other.norm()).detach()) < 0.02
