"""One optimisation step, against torch written out by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from small_models import make_bag, make_model
from torch import Tensor, nn

from sacmil.models import MILModel, Output, Recipe, Sample, create_model, list_models
from sacmil.models._recipe import Lookahead
from sacmil.models._registry import get_model_class
from sacmil.tasks import Task
from sacmil.training.loading import make_sample_loader
from sacmil.training.trainer import (
    SlowWeights,
    Trainer,
    make_lr_schedule,
    make_optimizer,
    set_learning_rate,
)


class TwoTiers(MILModel):
    """A stand-in for DTFD: the second tier's loss sees the first tier but must not train it."""

    name = "two_tiers"

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.first = nn.Linear(in_dim, num_classes)
        self.second = nn.Linear(num_classes, num_classes)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        first = self.first(features.mean(0))
        return Output(self.second(first), features.norm(dim=1), extras={"first": first})

    def losses(self, output: Output, target: Tensor, task: Task | None = None) -> dict[str, Tensor]:
        cross_entropy = nn.functional.cross_entropy
        return {
            "first": cross_entropy(output.extras["first"], target),
            "second": cross_entropy(output.logits, target),
        }

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        named = dict(self.named_parameters())
        return {
            tier: {name: p for name, p in named.items() if name.startswith(tier)}
            for tier in ("first", "second")
        }


def sample(seed: int = 0, label: int = 1) -> Sample:
    random = np.random.default_rng(seed)
    features: npt.NDArray[np.float32] = random.standard_normal((9, 5)).astype(np.float32)
    return Sample(torch.from_numpy(features), torch.zeros(9, 2), {}, torch.tensor(label))


def model() -> TwoTiers:
    torch.manual_seed(3)
    return TwoTiers(in_dim=5, num_classes=2)


def weights(m: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in m.named_parameters()}


def test_each_loss_trains_its_own_group_only() -> None:
    ours, plain = model(), model()
    Trainer(ours, Recipe(lr=1e-2)).step([sample()])
    optimizer = torch.optim.Adam(plain.first.parameters(), lr=1e-2)
    output = plain(sample().features, sample().coords, {})
    plain.losses(output, sample().target)["first"].backward()
    optimizer.step()
    assert weights(ours.first).keys() == weights(plain.first).keys()
    assert all(weights(ours.first)[n].equal(weights(plain.first)[n]) for n in weights(plain.first))
    assert not ours.second.weight.equal(plain.second.weight)


def test_bags_of_one_step_are_averaged() -> None:
    bags = [sample(0, 1), sample(1, 0), sample(2, 1)]
    ours, plain = model(), model()
    found = Trainer(ours, Recipe(lr=1e-2)).step(bags)
    groups = plain.parameter_groups()
    for tier, parameters in groups.items():
        losses = [plain.losses(plain(b.features, b.coords, {}), b.target)[tier] for b in bags]
        mean = torch.stack(losses).mean()
        assert found[tier].item() == pytest.approx(mean.item())
        grads = torch.autograd.grad(mean, list(parameters.values()))
        for parameter, grad in zip(parameters.values(), grads, strict=True):
            parameter.grad = grad
    torch.optim.Adam(plain.parameters(), lr=1e-2).step()
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(ours)[name], value)


@pytest.mark.parametrize("name", list_models())
def test_gradients_of_a_step_share_no_memory(name: str) -> None:
    """Or a second bag would be added to all of them, and clipping would scale them again."""
    ours = make_model(name)
    bags = [make_bag(20, seed=seed) for seed in range(2)]
    loader = make_sample_loader(ours, bags, [0, 1])
    Trainer(ours, Recipe()).step(list(loader))
    grads = [p.grad for p in ours.parameters() if p.grad is not None]
    assert len({grad.untyped_storage().data_ptr() for grad in grads}) == len(grads)


@pytest.mark.parametrize("norm", [1e-3, 1e3])
def test_gradients_are_clipped_by_prefix(norm: float) -> None:
    ours = model()
    trainer = Trainer(ours, Recipe(clip={"first.": norm}))
    trainer.step([sample()])
    first = torch.cat([p.grad.flatten() for p in ours.first.parameters()]).norm().item()
    second = torch.cat([p.grad.flatten() for p in ours.second.parameters()]).norm().item()
    assert first == pytest.approx(norm, rel=1e-3) if norm < 1 else first < norm
    assert second > 1e-2


def test_lookahead_goes_half_way_at_every_sync_but_the_first() -> None:
    slow, fast = model(), model()
    with_lookahead = Trainer(slow, Recipe(lr=1e-2, lookahead=Lookahead(steps=2, alpha=0.5)))
    without = Trainer(fast, Recipe(lr=1e-2))
    for _ in range(2):
        with_lookahead.step([sample()])
        without.step([sample()])
    remembered = weights(fast)
    assert all(weights(slow)[n].equal(remembered[n]) for n in remembered), "the first only copies"
    for _ in range(2):
        with_lookahead.step([sample()])
        without.step([sample()])
    for name, value in weights(fast).items():
        torch.testing.assert_close(weights(slow)[name], (remembered[name] + value) / 2)


def test_lookahead_goes_on_counting_where_it_was_stopped() -> None:
    parameter = nn.Parameter(torch.ones(2))
    first, again = (SlowWeights([parameter], Lookahead(steps=3)) for _ in range(2))
    first.step()
    again.load_state_dict(first.state_dict())
    again.step()
    assert again.slow is None, "two of three steps"
    again.step()
    assert again.slow is not None


def test_the_model_trains_in_training_mode() -> None:
    ours = model().eval()
    Trainer(ours, Recipe()).step([sample()])
    assert ours.training


@pytest.mark.parametrize(
    ("schedule", "epoch", "rate"),
    [
        ({}, 7, 1e-2),
        ({"schedule": "cosine"}, 0, 1e-2),
        ({"schedule": "cosine"}, 5, 5e-3),
        ({"schedule": "cosine"}, 10, 0.0),
        ({"schedule": "steps", "milestones": (0.5,), "gamma": 0.1}, 4.9, 1e-2),
        ({"schedule": "steps", "milestones": (0.5,), "gamma": 0.1}, 5, 1e-3),
        ({"warmup_epochs": 4.0}, 0.5, 1.25e-3),
    ],
)
def test_a_step_is_as_long_as_the_rate_of_its_epoch(schedule, epoch, rate) -> None:
    """Adam's first step moves a parameter by the rate, whatever the gradient."""
    ours = model()
    before = weights(ours)
    Trainer(ours, Recipe(lr=1e-2, epochs=10, **schedule)).step([sample()], epoch)
    longest = max((p - before[name]).abs().max().item() for name, p in weights(ours).items())
    assert longest == pytest.approx(rate, rel=1e-3)


def test_a_step_forgets_the_gradients_of_the_one_before() -> None:
    ours, fresh = model(), model()
    trainer = Trainer(ours, Recipe(lr=0.0))
    trainer.step([sample(0)])
    trainer.step([sample(1)])
    Trainer(fresh, Recipe(lr=0.0)).step([sample(1)])
    for ours_one, fresh_one in zip(ours.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(ours_one.grad, fresh_one.grad)
        assert fresh_one.grad.abs().max() > 0


def first_losses(made: MILModel, label: int, *, label_smoothing: float) -> dict[str, Tensor]:
    """Return the losses of one bag before the first step."""
    task = made.known_task.fitted(
        np.array([[label]]), label_smoothing=label_smoothing, class_weights="none"
    )
    torch.manual_seed(0)
    bag = sample(label=label)
    plan = made.plan(bag.coords.numpy(), bag.features.numpy())
    bag = bag._replace(plan={key: torch.from_numpy(value) for key, value in plan.items()})
    return Trainer(made, Recipe(), task=task).update_weights([bag])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_smoothing_is_torchs_for_every_tier(share: float) -> None:
    m = model()
    output = m(*sample()[:3])
    second, first = (
        nn.functional.cross_entropy(logits, torch.tensor(1), label_smoothing=share)
        for logits in (output.logits, output.extras["first"])
    )
    losses = first_losses(m, 1, label_smoothing=share)
    torch.testing.assert_close(losses, {"first": first, "second": second})


def test_smoothing_of_a_single_output_moves_its_target_to_the_middle() -> None:
    m = create_model("mean_pool", in_dim=5, num_classes=1)
    torch.manual_seed(0)  # as `first_losses` does: it drops the same features
    logits = m(*sample()[:3]).logits[0]
    wanted = torch.tensor(0.9)  # of a label of one, a fifth of which is random
    expected = nn.functional.binary_cross_entropy_with_logits(logits, wanted)
    torch.testing.assert_close(first_losses(m, 1, label_smoothing=0.2)["all"], expected)


OWN_LOSSES = [name for name in list_models() if get_model_class(name).losses is not MILModel.losses]


@pytest.mark.parametrize("name", ["mean_pool", *OWN_LOSSES])
def test_a_label_that_is_all_random_does_not_matter_to_any_model(name: str) -> None:
    made = []
    for label in (0, 1):
        torch.manual_seed(1)
        made.append(
            first_losses(create_model(name, in_dim=5, num_classes=2), label, label_smoothing=1)
        )
    torch.testing.assert_close(made[0], made[1])


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
    norm = make_optimizer(
        dict(nn.LayerNorm(4).named_parameters()), Recipe(weight_decay=0.5, exempt_vectors=True)
    )
    assert [group["weight_decay"] for group in norm.param_groups] == [0], "its weight is a vector"


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
