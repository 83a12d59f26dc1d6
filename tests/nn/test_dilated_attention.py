"""Dilated attention against the official procedure, written out token by token."""

from __future__ import annotations

import math

import pytest
import torch

from sacmil.nn import dilated_attention as module
from sacmil.nn.dilated_attention import (
    DilatedAttention,
    DilatedBranch,
    dilated_attention,
    log_sum_exp,
)

PLACEMENTS = pytest.mark.parametrize("legacy", [False, True], ids=["in_place", "legacy"])


def filled(x: torch.Tensor, rows: int, heads: int) -> torch.Tensor:
    """x (n, h, d) with zero rows and zero heads after its own."""
    out = x.new_zeros(rows, heads, x.shape[2])
    out[: x.shape[0], : x.shape[1]] = x
    return out


def branch_by_loops(q, k, v, w: int, r: int, *, legacy: bool):
    """Output and log-sum-exp of one branch: every padded row, one query at a time."""
    n, heads, d = q.shape
    w = min(w, n)
    count, length = math.ceil(n / w), math.ceil(w / r) * r
    group = math.ceil(heads / r)
    rows = count * (length if legacy else w)
    out = [[torch.zeros(d, dtype=q.dtype) for _ in range(heads)] for _ in range(rows)]
    lse = torch.full((rows, heads), -1e8, dtype=q.dtype)
    q, k, v = (filled(x, count * w, group * r) for x in (q, k, v))
    for i in range(count):
        qi, ki, vi = (filled(x[i * w : (i + 1) * w], length, group * r) for x in (q, k, v))
        for head in range(heads):
            for t in range(head // group, length if legacy else w, r):
                tokens = list(range(head // group, length, r))
                e = (ki[tokens, head] @ qi[t, head] / math.sqrt(d)).exp()
                row = i * (length if legacy else w) + t
                out[row][head] = e @ vi[tokens, head] / e.sum()
                lse[row, head] = e.sum().log().detach()
    return torch.stack([torch.stack(row) for row in out])[:n], lse[:n]


def by_loops(q, k, v, branches, *, legacy: bool) -> torch.Tensor:
    found = [branch_by_loops(q, k, v, w, r, legacy=legacy) for w, r in branches]
    weights = [lse.exp() for _, lse in found]
    total = sum(weights).clamp(min=1e-300)
    return sum((w / total)[:, :, None] * out for w, (out, _) in zip(weights, found, strict=True))


def some(n: int, heads: int, d: int = 3, seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, heads, d, generator=random, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]


CASES = [
    (1, 1, [(4, 1)]),
    (1, 2, [(4, 3), (2, 2)]),
    (2, 16, [(1, 1), (8, 16)]),
    (7, 1, [(7, 1), (3, 2)]),  # one head: only group 0 is there
    (9, 3, [(1, 1), (2, 2), (3, 3)]),
    (10, 4, [(4, 2), (8, 4)]),  # everything divides
    (11, 5, [(4, 3), (7, 5), (20, 2)]),  # nothing does
    (13, 16, [(5, 3), (5, 5)]),  # 16 heads to 18 and to 20
    (17, 6, [(6, 4), (17, 4), (16, 3)]),
    (20, 2, [(5, 4), (10, 7)]),  # groups of nothing but filling
    (21, 4, [(5, 3)]),  # a single branch leaves places uncovered
    (24, 3, [(6, 1), (12, 2), (24, 3), (99, 8)]),
]


@PLACEMENTS
@pytest.mark.parametrize(("n", "heads", "branches"), CASES, ids=str)
def test_it_is_the_official_procedure_in_a_loop(n, heads, branches, legacy) -> None:
    q, k, v = some(n, heads)
    found = dilated_attention(
        q, k, v, [DilatedBranch(*pair) for pair in branches], legacy_placement=legacy
    )
    wanted = by_loops(q, k, v, branches, legacy=legacy)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    direction = torch.randn_like(wanted)
    gradients = [
        torch.autograd.grad((y * direction).sum(), (q, k, v), allow_unused=True)
        for y in (found, wanted)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        # A loop that never touches a key leaves no gradient at all.
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@PLACEMENTS
@pytest.mark.parametrize(("n", "heads", "branches"), CASES, ids=str)
def test_every_branch_knows_its_log_sum_exp(n, heads, branches, legacy) -> None:
    q, k, v = some(n, heads, seed=1)
    for w, r in branches:
        out, lse = DilatedBranch(w, r).attend(q, k, v, legacy_placement=legacy)
        wanted, wanted_lse = branch_by_loops(q, k, v, w, r, legacy=legacy)
        torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(lse, wanted_lse, rtol=1e-10, atol=1e-12)
        assert not lse.requires_grad


def test_the_placements_differ_exactly_where_an_uneven_segment_has_a_successor() -> None:
    for n, w, r in [(20, 5, 1), (20, 6, 2), (20, 6, 3), (20, 20, 3), (5, 7, 3)]:
        q, k, v = some(n, 4)
        ours, theirs = (
            dilated_attention(q, k, v, [DilatedBranch(w, r)], legacy_placement=legacy)
            for legacy in (False, True)
        )
        assert ours.equal(theirs), (n, w, r)
    q, k, v = some(20, 4)
    ours, _ = DilatedBranch(5, 3).attend(q, k, v)
    theirs, _ = DilatedBranch(5, 3).attend(q, k, v, legacy_placement=True)
    assert theirs[:5].equal(ours[:5])
    assert theirs[6:11].equal(ours[5:10])  # row 5 holds the filling
    assert not theirs[5:10].equal(ours[5:10])


def test_one_whole_branch_is_plain_attention() -> None:
    q, k, v = some(30, 4, d=5)
    weights = (torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(5)).softmax(-1)
    found = dilated_attention(q, k, v, [DilatedBranch(1000, 1)])
    torch.testing.assert_close(found, torch.einsum("hij,jhd->ihd", weights, v))


@pytest.mark.parametrize("at_once", [1, 7, 40, 100, 250, 10_000])
def test_blocks_of_any_size_give_the_same_log_sum_exp(at_once, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_LOGITS", at_once)
    q, k = torch.randn(2, 6, 10, 4, dtype=torch.float64)
    wanted = (q @ k.mT / 2).logsumexp(-1)
    torch.testing.assert_close(log_sum_exp(q, k), wanted, rtol=1e-12, atol=0)


def test_logits_of_hundreds_do_not_overflow() -> None:
    q, k, v = (200 * x.detach().float() for x in some(12, 4))
    found = dilated_attention(q, k, v, [DilatedBranch(6, 1), DilatedBranch(12, 3)])
    wanted = dilated_attention(
        q.double(), k.double(), v.double(), [DilatedBranch(6, 1), DilatedBranch(12, 3)]
    )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-2)


def test_half_precision_mixes_in_full() -> None:
    q, k, v = (x.detach().bfloat16() for x in some(20, 3))
    branches = [DilatedBranch(4, 2), DilatedBranch(20, 8)]  # some places are in no branch
    found = dilated_attention(q, k, v, branches)
    assert found.dtype == torch.bfloat16
    wanted = dilated_attention(q.double(), k.double(), v.double(), branches)
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.05)


def test_a_norm_stands_before_the_output_layer() -> None:
    block = DilatedAttention(
        12, heads=4, branches=[DilatedBranch(5, 1), DilatedBranch(9, 2)]
    ).double()
    x = torch.randn(14, 12, dtype=torch.float64)
    q, k, v = (part(x).reshape(14, 4, 3) for part in (block.query, block.key, block.value))
    h = by_loops(q, k, v, [(5, 1), (9, 2)], legacy=False).reshape(14, 12)
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(block(x), block.out(h))
