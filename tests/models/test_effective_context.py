"""Which instances reach which through the blocks: by sets of positions, and by the network.

One block lets position p of a ring of m reach {p + j s mod m : |j| < k} with s = k^level. The
sets are checked against a real block first, then used for every length.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from exhaustive import choose_cases

from sacmil.models.sac_mil import SACBlock

K = 64


def rings(length: int, size: int) -> list[tuple[int, int]]:
    """Starts and ends of the rings; the last absorbs the remainder."""
    starts = [ring * size for ring in range(max(1, length // size))]
    return list(zip(starts, [*starts[1:], length], strict=True))


def spread(reached: np.ndarray, k: int, scale: int) -> np.ndarray:
    """What one block reaches inside a ring, for rows of boolean sets over its positions."""
    size = reached.shape[1]
    cycles = math.gcd(scale, size)
    length = size // cycles
    # Each cycle lists positions a step apart, so the reach of k - 1 steps is a circular window.
    order = (np.arange(cycles)[:, None] + scale * np.arange(length)) % size
    along = reached[:, order]
    if 2 * k - 1 >= length:
        window = np.broadcast_to(along.any(axis=2, keepdims=True), along.shape)
    else:
        wrapped = np.concatenate([along[..., 1 - k :], along, along[..., : k - 1]], axis=2)
        sums = np.concatenate(
            [np.zeros((*along.shape[:2], 1), np.int32), wrapped.cumsum(axis=2, dtype=np.int32)],
            axis=2,
        )
        window = sums[..., 2 * k - 1 :] > sums[..., : -(2 * k - 1)]
    out = np.empty_like(reached)
    out[:, order] = window
    return out


@cache
def after_two_blocks(size: int) -> np.ndarray:
    """The different sets that the instances of one level-1 ring reach inside it, packed."""
    inside = rings(size, K)
    reached = np.zeros((len(inside), size), dtype=bool)
    for row, (start, end) in enumerate(inside):
        single = np.eye(1, end - start, dtype=bool)
        assert spread(single, K, 1).all(), "a level-0 ring is not mixed by the first block"
        reached[row, start:end] = True
    return np.unique(np.packbits(spread(reached, K, K), axis=1), axis=0)


def everyone_reaches_everyone(length: int) -> bool:
    """Whether three blocks join every instance of a bag with every other."""
    for start, end in rings(length, K**2):
        packed = after_two_blocks(end - start)
        reached = np.zeros((len(packed), length), dtype=bool)
        reached[:, start:end] = np.unpackbits(packed, axis=1, count=end - start).astype(bool)
        if not spread(reached, K, K**2).all():
            return False
    return True


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("length", [3, 16, 37, 64, 90])
def test_the_sets_are_what_a_block_really_changes(length: int, level: int) -> None:
    k = 4
    block = SACBlock(8, k, level, "linear", "absorb", residual=False).double()
    x = torch.randn(length, 8, dtype=torch.float64)
    for start, end in rings(length, k ** (level + 1)):
        for chosen in {start, (start + end) // 2, end - 1}:
            poked = x.clone()
            poked[chosen] = 0
            with torch.no_grad():
                changed = (block(x) != block(poked)).any(dim=1).numpy()
            expected = np.zeros((1, length), dtype=bool)
            expected[0, chosen] = True
            expected[:, start:end] = spread(expected[:, start:end], k, k**level)
            assert np.array_equal(changed, expected[0])


REMAINDERS = [0, 1, 31, 32, 63, 64, 65, 4032, 4033, 4064, 4095]
CRITICAL = [whole * 4096 + left for whole in range(5) for left in REMAINDERS]
SAMPLED = {*CRITICAL, 127, 128, 129, 20_000, *np.random.default_rng(1).integers(1, 20_000, 40)}


@pytest.mark.parametrize("length", sorted(int(n) for n in SAMPLED if 1 <= n <= 20_000))
def test_three_blocks_join_every_instance_with_every_other(length: int) -> None:
    assert everyone_reaches_everyone(length)


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(20))
def test_three_blocks_join_all_at_every_length(thousand: int) -> None:
    lengths = choose_cases(range(1000 * thousand + 1, 1000 * thousand + 1001), step=37)
    assert [n for n in lengths if not everyone_reaches_everyone(n)] == []


@torch.no_grad()
def count_changed(chosen: list[int], blocks: torch.nn.Module, x: torch.Tensor) -> list[int]:
    """How many outputs change with each of the chosen instances set to zero."""
    usual, counts = blocks(x), []
    for each in chosen:
        poked = x.clone()
        poked[each] = 0
        counts.append(int((usual != blocks(poked)).any(dim=1).sum()))
    return counts


def three_blocks(tail: str) -> torch.nn.Module:
    blocks = [SACBlock(K, K, level, "linear", tail, residual=True) for level in range(3)]
    return torch.nn.Sequential(*blocks).double()


@pytest.mark.parametrize(
    "length", [256, 4096, *(pytest.param(n, marks=pytest.mark.slow) for n in (10_000, 16_385))]
)
def test_zeroing_one_instance_changes_every_output(length: int) -> None:
    x = torch.randn(length, K, dtype=torch.float64)
    chosen = [0, length // 2, length - 1]
    assert count_changed(chosen, three_blocks("absorb"), x) == [length] * 3


def test_a_split_tail_leaves_instances_apart_which_absorbing_joins() -> None:
    """At 16,385 the authors' probable reading reaches only 127 from the last instance."""
    x = torch.randn(16_385, K, dtype=torch.float64)
    assert count_changed([16_384, 8_192], three_blocks("split"), x) == [127, 16_385]
