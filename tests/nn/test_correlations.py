"""The rivals of the SAC block against golden numbers and their definitions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sacmil.errors import ModelError, OptionError
from sacmil.nn import load_reference_block
from sacmil.nn.correlations import (
    CORRELATION_BLOCKS,
    ChordMixerBlock,
    CycleBlock,
    SelfAttention,
    _rotate_by_gather,
    chord_rotate,
    insert_alibi,
)
from sacmil.nn.nystrom import NystromAttention, pseudo_inverse
from sacmil.nn.positions import alibi_slopes

ROWS = [0, 1, 150, -1]


def tensors(file: dict, group: str) -> dict[str, torch.Tensor]:
    begin = f"B/{group}/"
    return {
        k.removeprefix(begin): torch.as_tensor(v).double()
        for k, v in file.items()
        if k.startswith(begin)
    }


def exactly(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def linear(x: torch.Tensor, sd: dict, name: str) -> torch.Tensor:
    return F.linear(x, sd[f"{name}.weight"], sd[f"{name}.bias"])


# --- Nystrom -------------------------------------------------------------------------------------

NYSTROM = {"to_qkv": "qkv", "to_out.0": "out", "res_conv": "residual"}


@pytest.mark.parametrize("name", ["nystrom", "nystrom_009"])
def test_nystrom_equals_the_golden_numbers_and_gradients(golden, name: str) -> None:
    file = golden(name)
    block = load_reference_block("nystrom", tensors(file, "sd"), legacy_slice=name.endswith("009"))
    y = block.double()(torch.from_numpy(file["B/x"]).double())
    out = tensors(file, "out64")
    exactly(y[file.get("rows", slice(None))] if y.shape != out["y"].shape else y, out["y"])
    logits = y.mean(0)[:2]
    exactly(logits, out["logits"].flatten())
    F.cross_entropy(logits, torch.tensor(1)).backward()
    found = {key: p.grad.norm() for key, p in block.named_parameters()}
    for key, norm in tensors(file, "gradnorm64").items():
        path, _, last = key.removeprefix("attn.").rpartition(".")
        exactly(found[f"{NYSTROM[path]}.{last}"], norm)


@pytest.mark.parametrize("n", [1, 2, 5, 15, 16, 17, 24, 40, 47])
def test_repeated_landmarks_of_padding_change_neither_inverse_nor_gradient(n: int) -> None:
    block = NystromAttention(16, heads=2, landmarks=16).double()
    x = torch.randn(n, 16, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(n, 16, dtype=torch.float64)
    found = []
    for inverse in (block._invert, lambda a, _: pseudo_inverse(a)):
        block._invert = inverse
        y = block(x)
        found.append((y, *torch.autograd.grad((y * weights).sum(), [x, *block.parameters()])))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n", [1, 15, 16, 40])
def test_a_nystrom_row_is_that_of_the_whole_matrix(n: int) -> None:
    block = NystromAttention(32, heads=4).double()
    factors = block.factorize(torch.randn(n, 32, dtype=torch.float64))
    whole = factors.left @ factors.inverse @ factors.right
    assert factors.left.shape[1] == n + factors.padding
    for index in {0, n // 2, n - 1}:
        row = block.attention_row(factors, index)
        torch.testing.assert_close(row, whole[:, factors.padding + index, factors.padding :])


# --- ChordMixer ----------------------------------------------------------------------------------


def test_chordmixer_equals_the_golden_numbers_and_gradients(golden) -> None:
    file = golden("chordmixer")
    sd, out, norms = (tensors(file, group) for group in ("sd", "out64", "gradnorm64"))
    h = linear(torch.from_numpy(file["B/x"]).double(), sd, "embedding")
    exactly(chord_rotate(h)[ROWS], out["rot"])
    blocks = []
    for index, expected in enumerate(out["blocks"]):
        prefix = f"encoder.chordmixer_blocks.{index}."
        own = {key: value for key, value in sd.items() if key.startswith(prefix)}
        blocks.append(load_reference_block("chordmixer", own).double())
        h = blocks[-1](h)
        exactly(h[ROWS], expected)
    logits = linear(h.mean(0), sd, "decoder.decoder")
    exactly(logits, out["logits"].flatten())
    F.cross_entropy(logits, torch.tensor(1)).backward()
    for index, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            official = f"mix.{name}" if name.startswith("fc") else name
            key = f"encoder.chordmixer_blocks.{index}.{official}"
            if key in norms:
                exactly(parameter.grad.norm(), norms[key])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 64, 65, 300])
@pytest.mark.parametrize("dim", [5, 40, 41])
def test_one_gather_gives_what_rolled_tracks_give(n: int, dim: int) -> None:
    x = torch.randn(n, dim)
    assert _rotate_by_gather(x, None).equal(chord_rotate(x))
    assert _rotate_by_gather(x, 3).equal(chord_rotate(x, 3))


def test_a_track_looks_ahead_by_its_power_of_two() -> None:
    x = torch.arange(8.0)[:, None].expand(8, 4)
    assert chord_rotate(x)[0].tolist() == [0, 1, 2, 4]
    assert chord_rotate(x)[7].tolist() == [7, 0, 1, 3]


# --- CycleMLP ------------------------------------------------------------------------------------


def test_cyclemlp_equals_the_golden_numbers_and_gradients(golden) -> None:
    file = golden("cyclemlp")
    sd, out, norms = (tensors(file, group) for group in ("sd", "out64", "gradnorm64"))
    h = linear(torch.from_numpy(file["B/x"]).double(), sd, "fc")
    n = len(h)
    side = int(n**0.5) + 1
    h = F.pad(h, (0, 0, 0, side * side - n))
    blocks = []
    for index, expected in enumerate(out["blocks"]):
        own = {key: value for key, value in sd.items() if key.startswith(f"blocks.{index}.")}
        blocks.append(load_reference_block("cyclemlp", own).double())
        h = blocks[-1](h)
        exactly(h[[0, 1, n // 2, n - 1]], expected)
    h = F.layer_norm(h[:n], h.shape[1:], sd["norm.weight"], sd["norm.bias"])
    logits = linear(h.mean(0), sd, "head")
    exactly(logits, out["logits"].flatten())
    F.cross_entropy(logits, torch.tensor(1)).backward()
    names = {"sfc_h": "along_row", "sfc_w": "along_column", "mlp_c": "channel", "attn": "mix"}
    for key, norm in norms.items():
        if key.startswith("blocks."):
            _, index, *path = key.split(".")
            found = blocks[int(index)].get_parameter(".".join(names.get(p, p) for p in path))
            exactly(found.grad.norm(), norm)


def test_cyclemlp_sees_only_its_neighbours_on_the_grid() -> None:
    """Seven of nine cells: the last row of the 3 x 3 grid has one instance."""
    block = CycleBlock(6).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    near = {0: {0, 1, 3}, 4: {4, 1, 3, 5}, 6: {6, 3}, 2: {2, 1, 5}}
    for poked, reached in near.items():
        other = x.clone()
        other[poked] = 0
        changed = (block(x) != block(other)).any(1).nonzero().flatten().tolist()
        assert set(changed) == reached


def test_cyclemlp_has_as_many_parameters_as_the_sheet_says() -> None:
    def count(**options: bool) -> int:
        return sum(parameter.numel() for parameter in CycleBlock(512, **options).parameters())

    assert count() == 3_151_872
    assert count(reweight=True) == 3_415_680


# --- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_attention_is_its_formula(n: int, alibi: bool) -> None:  # noqa: FBT001
    block = SelfAttention(12, heads=3, alibi=alibi).double()
    x = torch.randn(n, 12, dtype=torch.float64)
    index = torch.arange(n)
    parts = []
    for head, (q, k, v) in enumerate(
        zip(*(t.chunk(3, 1) for t in block.qkv(x).chunk(3, 1)), strict=True)
    ):
        logits = q @ k.T / 2
        if alibi:
            logits = logits - alibi_slopes(3)[head] * (index[:, None] - index).abs()
        parts.append(logits.softmax(1) @ v)
    expected = block.out(torch.cat(parts, 1))
    torch.testing.assert_close(block(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(block(x), expected)


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [16, 21, 13])
@pytest.mark.parametrize("name", CORRELATION_BLOCKS)
@pytest.mark.parametrize("n", [1, 2, 7, 65])
def test_gradients_reach_every_parameter_and_instance(name: str, n: int, dim: int) -> None:
    block = CORRELATION_BLOCKS[name](dim)
    x = torch.randn(n, dim, requires_grad=True)
    (block(x) * torch.randn(n, dim)).sum().backward()
    assert x.grad.isfinite().all()
    silent = [
        key for key, p in block.named_parameters() if p.grad is None or not p.grad.isfinite().all()
    ]
    assert silent == []
    if n > 2:
        assert [key for key, p in block.named_parameters() if not p.grad.any()] == []


def test_alibi_goes_into_attention_and_not_into_mixers() -> None:
    taken = {name for name, make in CORRELATION_BLOCKS.items() if insert_alibi([make(16)], 16, 4)}
    assert taken == {"attention"}


def test_a_wrong_official_block_says_what_is_wrong() -> None:
    ones = torch.ones
    with pytest.raises(ModelError, match="did you mean 'nystrom'"):
        load_reference_block("nystrm", {})
    with pytest.raises(ModelError, match=r"no 'prenorm\.weight'"):
        load_reference_block("chordmixer", {"norm.weight": ones(4)})
    with pytest.raises(ModelError, match="expected one"):
        load_reference_block(
            "peg", {"a.proj.weight": ones(4, 1, 3, 3), "b.proj.weight": ones(4, 1, 3, 3)}
        )
    with pytest.raises(ModelError, match=r"proj\.bias is missing"):
        load_reference_block("peg", {"a.proj.weight": ones(4, 1, 3, 3)})
    with pytest.raises(OptionError, match="sides"):
        load_reference_block(
            "peg", {"proj.weight": ones(4, 1, 3, 3), "proj.bias": ones(4)}, sides=3
        )


def test_chordmixer_begins_as_officially() -> None:
    block = ChordMixerBlock(64)
    assert block.fc1.bias.eq(0).all()
    assert block.fc1.weight.abs().max() <= (6 / 128) ** 0.5
