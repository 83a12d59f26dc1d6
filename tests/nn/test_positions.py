"""Every position against golden numbers, and against what its definition promises."""

from __future__ import annotations

import math

import pytest
import torch

from sacmil.errors import OptionError
from sacmil.models.sac_mil import PROPE, SACBlock
from sacmil.nn import load_reference_block
from sacmil.nn.peg import PEG, PPEG, convolve_on_square
from sacmil.nn.positions import (
    POSITIONS,
    AdditiveALiBi,
    ALiBiDecay,
    RoPE,
    RoPE2D,
    Sinusoidal,
    alibi_slopes,
    rotate,
    sac_decay,
    symmetric_bias,
    wrap_angle,
)

NOWHERE = torch.zeros(0, 2)


def close(found: torch.Tensor, file: dict, key: str, atol: float) -> None:
    """Compare with a golden output, of which a trimmed file may hold some rows."""
    expected = torch.from_numpy(file[key]).double()
    rows = file.get("rows", slice(None))
    found = found[rows] if found.shape != expected.shape else found
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=0)


def weights(file: dict, prefix: str = "") -> dict:
    return {key[3:]: value for key, value in file.items() if key.startswith(f"sd/{prefix}")}


def lengths(file: dict, begin: str) -> list[int]:
    return [int(key.rsplit("_n", 1)[1]) for key in file if key.startswith(begin)]


# --- rotations and waves -------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True], ids=["interleaved", "half"])
def test_rope_equals_the_golden_numbers(golden, half: bool) -> None:  # noqa: FBT001
    file = golden("pe_rope1d")
    h = torch.from_numpy(file["x"])
    key = f"out/out_{'half' if half else 'interleaved'}"
    rope = RoPE(h.shape[1], half=half)
    close(rope(h.double(), NOWHERE), file, key, 1e-12)
    close(rope(h, NOWHERE), file, key, 5e-6)


@pytest.mark.parametrize("scale", [1, 512])
def test_prope_in_halves_equals_the_golden_numbers(golden, scale: int) -> None:
    file = golden("pe_prope")
    h, coords = torch.from_numpy(file["x"]).double(), torch.from_numpy(file["in/coords"])
    turned = rotate(h, PROPE(h.shape[1], scale).angles(coords), half=True)
    close(turned, file, f"out/out_half_{scale}", 1e-12)


@pytest.mark.parametrize("base", [100, 10000])
@pytest.mark.parametrize("form", ["blocks", "papereq"])
def test_rope2d_equals_the_golden_numbers(golden, form: str, base: int) -> None:
    file = golden("pe_rope2d")
    h = torch.from_numpy(file["x"]).double()
    rope = RoPE2D(h.shape[1], base=base, alternating=form == "papereq")
    tolerance = 5e-6 if form == "blocks" else 1e-12  # the reference has float32 angles
    close(rope(h, NOWHERE), file, f"out/out_{form}_theta{base}", tolerance)


def test_rope2d_on_the_slide_turns_by_coordinates() -> None:
    h, places = (
        torch.randn(9, 8, dtype=torch.float64),
        torch.tensor([[x, y] for y in range(3) for x in range(3)]),
    )
    torch.testing.assert_close(RoPE2D(8, slide=True)(h, places), RoPE2D(8)(h, NOWHERE))


@pytest.mark.parametrize("form", ["concat", "interleaved"])
def test_sinusoidal_equals_the_golden_numbers(golden, form: str) -> None:
    file = golden("pe_sinusoidal")
    h = torch.from_numpy(file["x"]).double()
    close(
        Sinusoidal(h.shape[1], alternating=form == "interleaved")(h, NOWHERE),
        file,
        f"out/out_{form}",
        1e-12,
    )


def test_angles_of_late_instances_stay_exact_in_float32() -> None:
    h = torch.randn(20_000, 4)
    torch.testing.assert_close(
        RoPE(4)(h, NOWHERE).double(), RoPE(4)(h.double(), NOWHERE), atol=2e-6, rtol=0
    )
    angles = torch.tensor([0.0, 4.0, -4.0, 1e4], dtype=torch.float64)
    reduced = wrap_angle(angles)
    assert reduced.abs().max() <= math.pi
    torch.testing.assert_close(reduced.sin(), angles.sin())
    torch.testing.assert_close(reduced.cos(), angles.cos())


@pytest.mark.parametrize(
    ("name", "dim", "words"),
    [("rope", 7, "even dim"), ("sinusoidal", 5, "even dim"), ("rope2d", 6, "multiple of 4")],
)
def test_a_dim_without_pairs_is_refused(name: str, dim: int, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        POSITIONS[name](dim)


# --- ALiBi ---------------------------------------------------------------------------------------


def test_slopes_are_the_official_ones(golden) -> None:
    file = golden("pe_alibi")
    for key in (key for key in file if "slopes" in key):
        expected = torch.from_numpy(file[key])
        torch.testing.assert_close(
            torch.tensor(alibi_slopes(len(expected)), dtype=torch.float64), expected
        )


def test_the_three_forms_of_alibi_equal_the_golden_numbers(golden) -> None:
    file = golden("pe_alibi")
    one = torch.zeros(1, dtype=torch.float64)
    bias = torch.stack([symmetric_bias(10, slope, one) for slope in alibi_slopes(8)])
    close(bias, {"b": file["out/bias_sym_8_n10"]}, "b", 1e-12)
    close(sac_decay(64, 8), {"d": file["out/sac_decay_D64_k8"]}, "d", 1e-12)
    term = AdditiveALiBi(64)(torch.zeros(37, 64, dtype=torch.float64), NOWHERE)
    close(term, {"a": file["out/additive_D64_H8_n37"]}, "a", 1e-12)


def test_a_single_instance_gets_no_additive_alibi() -> None:
    h = torch.randn(1, 16)
    assert AdditiveALiBi(16)(h, NOWHERE).equal(h)


def test_a_decay_weakens_what_a_sac_block_has_shifted() -> None:
    block = SACBlock(16, 4, 0, "linear", "absorb", residual=False)
    x = torch.randn(8, 16)
    shifted = []
    block.w1.register_forward_pre_hook(lambda _, given: shifted.append(given[0]))
    block(x)
    block.decay = ALiBiDecay(16, 4)
    block(x)
    torch.testing.assert_close(shifted[1], shifted[0] * sac_decay(16, 4).float())
    assert sac_decay(10, 4).shape == (10,), "uneven folds have factors too"


# --- PEG and PPEG --------------------------------------------------------------------------------


def test_peg_equals_the_golden_numbers(golden) -> None:
    file = golden("pe_peg")
    for begin, prefix in (("out/out_n", "k7"), ("out/out_k3_n", "k3")):
        peg = load_reference_block("peg", weights(file, prefix)).double()
        for n in lengths(file, begin):
            close(peg(torch.from_numpy(file["x"][:n]).double()), file, f"{begin}{n}", 1e-5)


def test_peg_down_the_columns_equals_the_golden_numbers(golden) -> None:
    file = golden("pe_peg_conv1d")
    peg = load_reference_block("peg", weights(file)).double()
    assert peg.weights[0].shape[2:] == (7, 1)
    for n in lengths(file, "out/out_n"):
        close(peg(torch.from_numpy(file["x"][:n]).double()), file, f"out/out_n{n}", 1e-5)


@torch.no_grad()
def test_soft_peg_is_nothing_at_first_and_then_a_seventh_of_peg() -> None:
    soft, peg, h = POSITIONS["soft_peg"](6), POSITIONS["peg"](6), torch.randn(70, 6)
    coords = torch.zeros(70, 2)
    torch.testing.assert_close(soft(h, coords), h)
    soft.weights[0].copy_(7 * peg.weights[0])
    torch.testing.assert_close(soft(h, coords), peg(h, coords))


def test_ppeg_equals_the_golden_numbers(golden) -> None:
    file = golden("pe_ppeg")
    ppeg = load_reference_block("ppeg", weights(file)).double()
    for n in lengths(file, "out/out_n"):
        close(ppeg(torch.from_numpy(file["x"][:n]).double()), file, f"out/out_n{n}", 1e-5)


def test_ppeg_of_transmil_is_the_same_on_the_instances(golden) -> None:
    file = golden("pe_ppeg_transmil")
    ppeg = load_reference_block("ppeg", weights(file)).double()
    x = torch.from_numpy(file["x"]).double()
    side = math.isqrt(len(x) - 1) + 1
    square = torch.cat([x, x[: side * side - len(x)]])
    cls = torch.from_numpy(file["in/cls"]).double()
    close(torch.cat([cls, ppeg(square)]), file, "out/out_with_cls", 1e-5)
    torch.testing.assert_close(ppeg(x), ppeg(square)[: len(x)])


@pytest.mark.parametrize("size", [(7, 7), (1, 5), (3, 1)], ids=str)
@pytest.mark.parametrize("bags", [1, 2])
def test_gradients_are_those_of_torch(size: tuple[int, int], bags: int) -> None:
    place = PEG(6, kernels=[size]).double()
    grid = torch.randn(bags, 6, 4, 9, dtype=torch.float64, requires_grad=True)
    parts = (grid, *place.parameters())
    grad = torch.randn_like(grid)
    found = torch.autograd.grad(place.convolve(grid), parts, grad)
    weight, bias = place.parameters()
    usual = grid + torch.nn.functional.conv2d(
        grid, weight, bias, padding=(size[0] // 2, size[1] // 2), groups=6
    )
    for one, other in zip(found, torch.autograd.grad(usual, parts, grad), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_under_autocast_have_the_types_of_what_they_are_of() -> None:
    place, h = PEG(8), torch.randn(30, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = place(h).float().square().sum()
    loss.backward()  # where training calls it
    exact = torch.autograd.grad(place(h).square().sum(), h)[0]
    assert h.grad is not None
    assert {each.grad.dtype for each in place.parameters()} == {h.grad.dtype} == {torch.float32}
    assert float((h.grad - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize(
    ("make", "n"),
    [
        *((PEG, n) for n in (1, 2, 7, 16, 17)),
        (PPEG, 2),
        # On a grid of 7 by 7, as with two instances.
        *(pytest.param(PPEG, n, marks=pytest.mark.slow) for n in (1, 7, 16, 17)),
    ],
)
def test_compilers_get_the_same_and_the_same_gradients(make: type[PEG], n: int) -> None:
    place, h = make(2).double(), torch.randn(n, 2, dtype=torch.float64, requires_grad=True)
    inputs = (h, *(part.detach().requires_grad_() for part in place.merge_kernels()))
    out = convolve_on_square(*inputs, place.smallest)
    torch.testing.assert_close(out, place(h))
    assert torch.autograd.gradcheck(
        lambda *given: convolve_on_square(*given, place.smallest), inputs
    )


def test_compiled_under_autocast_it_is_close() -> None:
    place, h = PEG(8), torch.randn(30, 8).bfloat16().requires_grad_()
    compiled = torch.compile(place, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(h)
    (gradient,) = torch.autograd.grad(found.float().square().sum(), h)
    exact = place(h.float())
    (truth,) = torch.autograd.grad(exact.square().sum(), h)
    assert float((found - exact).detach().norm() / exact.detach().norm()) < 0.02
    assert float((gradient - truth).norm() / truth.norm()) < 0.02


def test_the_operation_keeps_torchs_rules() -> None:
    inputs = (torch.randn(11, 4), torch.randn(4, 1, 3, 3), torch.randn(4))
    torch.library.opcheck(convolve_on_square, (*(part.requires_grad_() for part in inputs), 1))


def test_peg_begins_as_rrt_begins_it() -> None:
    peg = PEG(512)
    assert sum(parameter.numel() for parameter in peg.parameters()) == 25_600
    assert sum(parameter.numel() for parameter in PPEG(512).parameters()) == 44_032
    assert peg.biases[0].eq(0).all()
    expected = math.sqrt(2 / (49 + 49 * 512))
    assert peg.weights[0].std().item() == pytest.approx(expected, rel=0.05)
