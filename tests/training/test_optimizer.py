"""What a recipe says about updates, against torch's own optimizers and schedules."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sacmil.models import Recipe
from sacmil.training.optimizer import make_lr_schedule, make_optimizer, set_learning_rate


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "embed": nn.Linear(3, 4),
            "layers": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]),
            "head": nn.Linear(4, 2),
        }
    )


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("adam", lambda p, **kw: torch.optim.Adam(p, **kw)),
        ("adamw", lambda p, **kw: torch.optim.AdamW(p, **kw)),
        ("radam", lambda p, **kw: torch.optim.RAdam(p, decoupled_weight_decay=True, **kw)),
    ],
)
def test_updates_are_torchs(name: str, reference) -> None:
    ours, theirs = net(), net()
    recipe = Recipe(optimizer=name, lr=0.1, betas=(0.5, 0.9), weight_decay=0.3)
    optimizers = [
        make_optimizer(dict(ours.named_parameters()), recipe),
        reference(theirs.parameters(), lr=0.1, betas=(0.5, 0.9), weight_decay=0.3),
    ]
    for _ in range(8):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            sum((p**2).sum() + p.sum() for p in model.parameters()).backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def decay_of(recipe: Recipe) -> dict[str, tuple[float, float]]:
    model = net()
    names = {p: name for name, p in model.named_parameters()}
    optimizer = make_optimizer(dict(model.named_parameters()), recipe)
    return {
        names[p]: (group["weight_decay"], group["lr"])
        for group in optimizer.param_groups
        for p in group["params"]
    }


def test_vectors_are_spared_the_decay_where_the_recipe_says() -> None:
    found = decay_of(Recipe(weight_decay=0.5, exempt_vectors=True))
    assert {name for name, (decay, _) in found.items() if decay == 0} == {
        name for name in found if name.endswith("bias")
    }


def test_layer_decay_slows_what_is_far_from_the_head() -> None:
    found = decay_of(Recipe(lr=1.0, layer_decay=0.5))
    assert found["head.weight"][1] == 1.0
    assert found["layers.1.weight"][1] == 0.5
    assert found["layers.0.weight"][1] == 0.25
    assert found["embed.weight"][1] == 0.125
    optimizer = make_optimizer(dict(net().named_parameters()), Recipe(lr=1.0, layer_decay=0.5))
    set_learning_rate(optimizer, 0.1)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.0125, 0.025, 0.05, 0.1]


def test_schedules_are_what_they_are_called() -> None:
    cosine = make_lr_schedule(Recipe(lr=1.0, schedule="cosine", lr_min=0.2, epochs=10))
    assert cosine(0) == 1.0
    assert cosine(5) == pytest.approx(0.6)
    assert cosine(10) == pytest.approx(0.2)
    assert cosine(2) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi * 0.2)) / 2)
    steps = make_lr_schedule(
        Recipe(lr=1.0, schedule="steps", milestones=(0.5, 0.8), gamma=0.2, epochs=10)
    )
    assert [steps(e) for e in (0, 4.9, 5, 7.9, 8)] == pytest.approx([1, 1, 0.2, 0.2, 0.04])
    warm = make_lr_schedule(Recipe(lr=1.0, warmup_epochs=2))
    assert [warm(e) for e in (0, 1, 2, 100)] == [0, 0.5, 1, 1]
