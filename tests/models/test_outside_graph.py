"""A compiled model makes the plan of a bag outside its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from sacmil import Bag, create_model, list_models, predict
from sacmil.errors import InputError
from sacmil.models import MILModel
from sacmil.models._registry import get_model_class

DIM = 12


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def model_of(name: str, **options: object) -> MILModel:
    torch.manual_seed(0)
    options = {**get_model_class(name).small_options, **options}
    return create_model(name, in_dim=DIM, num_classes=2, **options).eval()


def bag_of(instances: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(instances)
    cells = random.permutation(np.argwhere(np.ones((15, 15))))[:instances]
    features = random.standard_normal((instances, DIM)).astype(np.float32)
    return torch.from_numpy(features), torch.from_numpy(cells)


@pytest.mark.parametrize("name", ["sac_mil", pytest.param("sac_mil_local", marks=pytest.mark.slow)])
def test_a_compiled_model_needs_no_plan(name: str) -> None:
    model = model_of(name, depth=1)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    with torch.no_grad():
        for instances in (20, 31):
            bag = bag_of(instances)
            torch.testing.assert_close(compiled(*bag).logits, model(*bag).logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_every_model_can_be_compiled_without_a_plan(name: str) -> None:
    model, bag = model_of(name), bag_of(20)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")(*bag)
        torch.testing.assert_close(compiled.logits, model(*bag).logits)


@pytest.mark.slow
def test_a_compiled_model_is_trained_without_a_plan() -> None:
    model, bag, target = model_of("sac_mil_local"), bag_of(20), torch.tensor(1)
    gradients = []
    for call in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        sum(model.losses(call(*bag), target).values()).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_whole_graph_is_rejected_with_the_call_that_has_one() -> None:
    compiled = torch.compile(model_of("sac_mil_local"), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"plan = model.plan\(coords.numpy\(\), features.numpy"):
        compiled(*bag_of(20))


def test_an_export_without_a_plan_is_rejected_with_what_to_give() -> None:
    with pytest.raises(InputError, match="expected the plan of the example bag as third argument"):
        torch.export.export(model_of("sac_mil_local"), bag_of(20))


def test_a_compiled_model_predicts(make_bag: Callable[..., Bag]) -> None:
    model, bag = model_of("sac_mil_local"), make_bag(20, DIM)
    compiled = torch.compile(model, backend="eager")
    np.testing.assert_allclose(predict(compiled, bag).scores, predict(model, bag).scores, rtol=1e-5)
