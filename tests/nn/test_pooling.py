"""Pools are weighted sums with the weights they name, and sums by group are exported safely."""

from __future__ import annotations

import ast
import inspect
import math
import pkgutil
from importlib import import_module

import pytest
import torch

import sacmil.models
import sacmil.nn
from sacmil.nn.pooling import POOLS, scatter_sum


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


@torch.no_grad()
def test_the_even_pool_is_half_the_mean_and_half_attention() -> None:
    pool, attention, x = POOLS["even"](6).double(), POOLS["attention"](6).double(), instances()
    attention.load_state_dict(pool.state_dict())
    torch.testing.assert_close(pool(x), (x.mean(0) + attention(x)) / 2)


every_pool = pytest.mark.parametrize("name", sorted(POOLS))


@every_pool
@pytest.mark.parametrize("count", [1, 2, 9, 500])
@torch.no_grad()
def test_instances_times_their_weights_add_up_to_the_pooled(name: str, count: int) -> None:
    pool, x = POOLS[name](6).double(), torch.randn(count, 6, dtype=torch.float64)
    torch.testing.assert_close((pool.weights(x) * x).sum(0), pool(x))


@every_pool
@torch.no_grad()
def test_instances_that_tie_are_not_counted_twice(name: str) -> None:
    pool = POOLS[name](6).double()
    some = torch.randint(0, 2, (9, 6)).double()
    for x in (some, torch.ones(9, 6, dtype=torch.float64), -some):
        torch.testing.assert_close((pool.weights(x) * x).sum(0), pool(x))
        torch.testing.assert_close(pool.weights(x).sum(0).expand(6), x.new_ones(6))


@pytest.mark.parametrize("name", ["mean", "attention", "even"])
@pytest.mark.parametrize("count", [1, 2, 9, 500])
@torch.no_grad()
def test_each_instance_has_one_weight_and_all_sum_to_one(name: str, count: int) -> None:
    pool, x = POOLS[name](6).double(), torch.randn(count, 6, dtype=torch.float64)
    weights = pool.weights(x)
    assert weights.shape == (count, 1)
    assert (weights > 0).all()
    assert weights.sum().item() == pytest.approx(1.0)


def test_the_weights_of_the_max_pool_say_whose_value_was_taken() -> None:
    x = instances()
    weights = POOLS["max"](6).weights(x)
    assert weights.sum(0).tolist() == [1.0] * 6
    assert weights.argmax(0).tolist() == [channel.index(max(channel)) for channel in x.T.tolist()]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_rows_are_added_up_by_owner(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    owner, rows = torch.randint(0, 5, (40,)), torch.randn(40, *shape, dtype=torch.float64)
    found = scatter_sum(owner, rows, 6)
    for number in range(6):
        torch.testing.assert_close(found[number], rows[owner == number].sum(0))


def test_no_model_adds_with_index_add() -> None:
    for package in (sacmil.models, sacmil.nn):
        for module in pkgutil.iter_modules(package.__path__):
            source = inspect.getsource(import_module(f"{package.__name__}.{module.name}"))
            called = {n.attr for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
            assert not called & {"index_add", "index_add_", "index_put", "index_put_"}, module.name
