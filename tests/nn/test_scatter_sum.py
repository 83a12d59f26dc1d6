"""Sums by owner: those of a plain loop, and exported without the node that loses some."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module

import pytest
import torch

import sacmil.models
import sacmil.nn
from sacmil.nn.scatter_sum import scatter_sum


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
