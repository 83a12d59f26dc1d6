"""The pools against their definitions, one instance after the other."""

from __future__ import annotations

import math

import torch

from sacmil.nn.pooling import POOLS


def instances() -> torch.Tensor:
    return torch.randn(9, 6, dtype=torch.float64)


def test_the_mean_pool_is_the_sum_over_the_number_of_instances() -> None:
    x = instances()
    torch.testing.assert_close(POOLS["mean"](6)(x), sum(x) / 9)


def test_the_max_pool_takes_the_largest_value_of_each_channel() -> None:
    x = instances()
    assert POOLS["max"](6)(x).tolist() == [max(channel) for channel in x.T.tolist()]


@torch.no_grad()
def test_the_attention_pool_weighs_by_the_softmax_of_its_attention() -> None:
    pool, x = POOLS["attention"](6).double(), instances()
    value, weight = pool.attention.value, pool.attention.weight
    powers = [
        math.exp(weight.weight[0] @ torch.tanh(value.weight @ h + value.bias) + weight.bias[0])
        for h in x
    ]
    expected = sum(power / sum(powers) * h for power, h in zip(powers, x, strict=True))
    torch.testing.assert_close(pool(x), expected)


def test_the_weights_of_the_attention_pool_sum_to_one() -> None:
    pool = POOLS["attention"](6).double()
    equal = torch.randn(6, dtype=torch.float64).expand(9, 6)
    torch.testing.assert_close(pool(equal), equal[0])
