"""A packed sample has the values, types and shapes of the sample, each tensor aligned."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sacmil.models import Sample
from sacmil.training.packing import allocate, pack


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 9),
    edges=st.integers(0, 5),
    half=st.booleans(),
    targets=st.integers(0, 3),
)
def test_unpacking_returns_what_was_packed(rows, width, edges, half, targets) -> None:
    torch.manual_seed(rows)
    sample = Sample(
        torch.randn(rows, width).to(torch.float16 if half else torch.float32),
        torch.randn(rows, 2, dtype=torch.float64),
        {"order": torch.randperm(rows), "edges": torch.ones(2, edges).bool()},
        torch.randn(targets) if targets else torch.tensor(1),
    )
    packed = pack(sample)
    copied = allocate(packed.fields)
    copied.view_bytes(0, packed.block.nbytes)[:] = packed.view_bytes(0, packed.block.nbytes)
    for found in (packed.unpack(), copied.unpack()):
        assert found.plan.keys() == sample.plan.keys()
        pairs = [*zip(found[:2], sample[:2], strict=True), (found.target, sample.target)]
        pairs += [(found.plan[key], sample.plan[key]) for key in sample.plan]
        for one, other in pairs:
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other)
            assert one.data_ptr() % 64 == 0 or not one.numel()
    assert packed.features_end == sample.features.nbytes
