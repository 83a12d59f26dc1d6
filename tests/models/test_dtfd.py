"""DTFD-MIL against the official implementation, and what its two tiers promise each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sacmil import create_model
from sacmil.errors import ModelError, OptionError
from sacmil.models import Output, Recipe, Sample, load_reference
from sacmil.models._base import average_logits
from sacmil.models.dtfd import CLIP_NORMS, DISTILLATIONS, DTFD
from sacmil.training.trainer import Trainer

Arrays = dict[str, np.ndarray]
GROUPS = 4

every_distillation = pytest.mark.parametrize("distill", DISTILLATIONS)


@pytest.fixture
def file(golden: Callable[[str], Arrays]) -> Arrays:
    return golden("dtfd")


def official(file: Arrays, **options: Any) -> DTFD:
    state = {key[3:]: value for key, value in file.items() if key.startswith("sd/")}
    return load_reference("dtfd", state, **options)


def answer(model: DTFD, x: np.ndarray | torch.Tensor) -> Output:
    x = torch.as_tensor(x)
    return model(x, torch.zeros(len(x), 2))


def assert_close(ours: torch.Tensor, theirs: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(
        ours.detach().numpy().reshape(theirs.shape), theirs, atol=tolerance, rtol=0
    )


def fresh(in_dim: int = 10, num_classes: int = 2, dim: int = 6, **options: Any) -> DTFD:
    return create_model("dtfd", in_dim=in_dim, num_classes=num_classes, dim=dim, **options)


def parts(model: DTFD, x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    h = model.tier1.project(torch.as_tensor(x)).relu()
    return h, model.tier1.attention(h)


# --- against the official implementation ---------------------------------------------------------


def test_the_first_tier_is_the_official_one(file: Arrays) -> None:
    model = official(file)
    h, raw = parts(model, file["x"])
    assert_close(h, file["out/mid"])
    assert_close(raw, file["out/tier1_attention_raw"])
    groups = torch.arange(len(h)).tensor_split(GROUPS)
    per_bag = torch.cat([raw[rows].softmax(0) for rows in groups])
    assert_close(per_bag, file["out/tier1_attention_per_bag"])
    activations = torch.cat([model.tier1.activations(h[rows], raw[rows]) for rows in groups])
    assert_close(activations.softmax(1), file["out/cam_prob_per_bag"])
    assert_close(answer(model, file["x"]).extras["tier1"], file["out/tier1_logits"])


def distillations(file: Arrays) -> list[tuple[str, int]]:
    keys = [key.split("_") for key in file if key.startswith("out/tier2_logits_")]
    return [(distill, int(total[1:])) for *_, distill, total in keys]


def test_every_official_distillation_and_slide_answer_is_reproduced(file: Arrays) -> None:
    found = distillations(file)
    assert ("AFS", 4) in found
    for distill, total in found:
        model = official(file, distill=distill, total_instances=total, legacy_zero=True)
        output = answer(model, file["x"])
        key = f"{distill}_t{total}"
        assert_close(output.extras["distilled"], file[f"out/tier2_in_{key}"])
        assert_close(output.logits, file[f"out/tier2_logits_{key}"])
        assert_close(model.probabilities(output), file[f"out/tier2_prob_{key}"])


@pytest.mark.parametrize("distill", ["MaxS", "MaxMinS"])
def test_two_training_steps_end_where_the_official_loop_does(file: Arrays, distill: str) -> None:
    model = official(file, distill=distill, shuffle=False)
    trainer = Trainer(model, Recipe(lr=1e-2, weight_decay=1e-4, clip=CLIP_NORMS))
    for x, label in ((file["x"], 1), (file["in/x2"], 0)):
        coords = torch.zeros(len(x), 2)
        plan = model.plan(coords.numpy())
        trainer.step([Sample(torch.from_numpy(x), coords, plan, torch.tensor(label))])
    prefix = f"out/after2steps_{distill}/"
    wanted = {key.removeprefix(prefix): file[key] for key in file if key.startswith(prefix)}
    theirs = DTFD.reference({name: torch.from_numpy(value) for name, value in wanted.items()}).state
    assert set(theirs) == set(model.state_dict())
    for name, value in model.state_dict().items():
        tolerance = 2e-5 if name.endswith("attention.weight.bias") else 5e-6
        assert_close(value, theirs[name].numpy(), tolerance)


def test_the_clipped_modules_are_the_official_four() -> None:
    names = [name for name, _ in fresh().named_parameters()]
    assert all(sum(name.startswith(prefix) for prefix in CLIP_NORMS) == 1 for name in names)
    assert set(CLIP_NORMS.values()) == {5.0}


def test_a_tier_has_the_official_number_of_parameters() -> None:
    with torch.device("meta"):
        model = create_model("dtfd", in_dim=1024, num_classes=2)
    sizes = {
        tier: sum(parameter.numel() for parameter in parameters.values())
        for tier, parameters in model.parameter_groups().items()
    }
    assert sizes == {"tier1": 656_771, "tier2": 132_483}
    assert sum(sizes.values()) == 789_254


def test_another_checkpoint_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"not an official dtfd: dim_reduction\.fc1\.weight"):
        load_reference("dtfd", {"fc.weight": np.zeros((2, 3))})


# --- the two tiers -------------------------------------------------------------------------------


def gradients(model: DTFD, loss: str) -> set[str]:
    """Parameters that a loss moves."""
    output = answer(model.train(), torch.randn(40, 10))
    label = torch.tensor(1)
    losses = {
        "tier1": F.cross_entropy(output.extras["tier1"], label.expand(GROUPS)),
        "tier2": F.cross_entropy(output.logits, label),
    }
    losses[loss].backward()
    return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


@every_distillation
def test_the_second_tiers_loss_never_moves_the_first(distill: str) -> None:
    moved = gradients(fresh(distill=distill, total_instances=8), "tier2")
    assert moved
    assert all(name.startswith("tier2.") for name in moved)


@every_distillation
def test_trained_jointly_the_second_tiers_loss_moves_the_first(distill: str) -> None:
    moved = gradients(fresh(distill=distill, total_instances=8, joint=True), "tier2")
    assert "tier1.project.weight" in moved
    assert "tier2.head.weight" in moved


def test_the_first_tiers_loss_moves_only_the_first() -> None:
    model = fresh()
    assert gradients(model, "tier1") == set(model.parameter_groups()["tier1"])


def test_joint_training_has_the_sum_of_both_losses() -> None:
    apart, joint = fresh(), fresh(joint=True)
    joint.load_state_dict(apart.state_dict())
    x, label = torch.randn(30, 10), torch.tensor(0)
    separate = apart.eval().losses(answer(apart, x), label)
    together = joint.eval().losses(answer(joint, x), label)
    assert set(separate) == {"tier1", "tier2"}
    assert together["all"].item() == pytest.approx(sum(separate.values()).item())
    assert set(joint.parameter_groups()["all"]) == set(dict(joint.named_parameters()))


def test_every_pseudo_bag_carries_the_slides_label() -> None:
    model = fresh(num_classes=3).eval()
    output = answer(model, torch.randn(30, 10))
    by_hand = -output.extras["tier1"].log_softmax(1)[:, 2].mean()
    assert model.losses(output, torch.tensor(2))["tier1"].item() == pytest.approx(by_hand.item())


def test_attention_ranks_what_mas_hands_on() -> None:
    model = fresh(distill="MAS", total_instances=6, groups=2).eval()
    x = torch.randn(31, 10)
    h, raw = parts(model, x)
    largest = [g[raw[g, 0].topk(3).indices] for g in torch.arange(31).tensor_split(2)]
    torch.testing.assert_close(answer(model, x).extras["distilled"], h[torch.cat(largest)])


def test_a_single_output_ranks_by_its_activation() -> None:
    model = fresh(num_classes=1, distill="MaxS", groups=1, total_instances=5).eval()
    x = torch.randn(31, 10)
    h, raw = parts(model, x)
    best = model.tier1.activations(h, raw)[:, 0].topk(5).indices
    torch.testing.assert_close(answer(model, x).extras["distilled"], h[best])


# --- ties ---------------------------------------------------------------------------------------


def saturated(distill: str, **options: Any) -> tuple[DTFD, torch.Tensor]:
    """Weights so large that in float32 many probabilities are the same."""
    torch.manual_seed(0)
    model = fresh(in_dim=64, dim=64, distill=distill, groups=1, **options).eval()
    with torch.no_grad():
        for parameter in model.tier1.parameters():
            parameter.mul_(20)
    return model, torch.randn(300, 64)


@pytest.mark.parametrize("distill", ["MaxS", "MaxMinS"])
def test_an_official_checkpoint_breaks_ties_as_the_official_code_does(distill: str) -> None:
    model, x = saturated(distill, legacy_ties=True, total_instances=8)
    h, raw = parts(model, x)
    probability = model.tier1.activations(h, raw).softmax(1)[:, -1]
    assert len(probability.unique()) < len(x) // 2
    order = torch.sort(probability, descending=True).indices
    rows = order[:8] if distill == "MaxS" else torch.cat((order[:8], order[-8:]))
    assert torch.equal(answer(model, x).extras["distilled"], h[rows])


def test_otherwise_instances_that_round_to_one_probability_keep_their_order() -> None:
    model, x = saturated("MaxS", total_instances=8)
    h, raw = parts(model, x)
    s = model.tier1.activations(h, raw)
    assert len(s.softmax(1)[:, -1].unique()) < len((s[:, 1] - s[:, 0]).unique())
    best = (s[:, 1] - s[:, 0]).argsort(descending=True, stable=True)[:8]
    assert torch.equal(answer(model, x).extras["distilled"], h[best])


def test_official_checkpoints_get_official_ties(file: Arrays) -> None:
    assert official(file).options["legacy_ties"] is True
    assert fresh().options["legacy_ties"] is False


# --- shuffles ------------------------------------------------------------------------------------


def test_training_shuffles_by_torchs_seed_and_evaluation_does_not() -> None:
    model, x = fresh().train(), torch.randn(50, 10)
    tier1 = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        tier1.append(answer(model, x).extras["tier1"])
    assert torch.equal(tier1[0], tier1[1])
    assert not torch.allclose(tier1[0], tier1[2])
    model.eval()
    contiguous = fresh(shuffle=False).train()
    contiguous.load_state_dict(model.state_dict())
    assert torch.equal(answer(model, x).logits, answer(contiguous, x).logits)


@pytest.mark.parametrize("num_classes", [1, 3])
def test_averaged_shuffles_give_the_mean_probability(num_classes: int) -> None:
    model, x = fresh(num_classes=num_classes, inference_shuffles=3).eval(), torch.randn(50, 10)
    orders = model.plan(np.zeros((50, 2)))["orders"]
    assert orders.shape == (3, 50)
    single = fresh(num_classes=num_classes).eval()
    single.load_state_dict(model.state_dict())
    wanted = torch.stack([single.probabilities(answer(single, x[order])) for order in orders])
    output = answer(model, x)
    torch.testing.assert_close(model.probabilities(output), wanted.mean(0))
    assert output.scores.shape == (50,)


def test_an_average_of_sure_answers_stays_finite() -> None:
    logits = torch.tensor([[200.0, -200.0], [150.0, -300.0]])
    assert average_logits(logits, independent=True).isfinite().all()
    assert average_logits(logits, independent=False).isfinite().all()


# --- bags of any size ----------------------------------------------------------------------------


@every_distillation
@pytest.mark.parametrize("num_classes", [1, 2, 4])
@pytest.mark.parametrize("instances", [1, 2, 3, 5, 9])
def test_a_tiny_bag_has_no_empty_pseudo_bag(distill: str, num_classes: int, instances: int) -> None:
    model = fresh(num_classes=num_classes, distill=distill, groups=5, total_instances=20).train()
    output = answer(model, torch.randn(instances, 10))
    assert len(output.extras["tier1"]) == min(5, instances)
    sum(model.losses(output, torch.tensor(0)).values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_pseudo_bags_are_near_equal_runs_with_the_longer_ones_first() -> None:
    tier = fresh(groups=7).tier1
    for instances in range(1, 40):
        rows = torch.arange(instances)
        wanted = rows.tensor_split(min(7, instances))
        assert [g.tolist() for g in tier._split_into_pseudo_bags(rows)] == [
            g.tolist() for g in wanted
        ]


@every_distillation
def test_more_groups_than_instances_to_hand_on_still_hand_on_one_each(distill: str) -> None:
    rows = answer(fresh(distill=distill, groups=5).eval(), torch.randn(40, 10)).extras["distilled"]
    assert len(rows) == (10 if distill == "MaxMinS" else 5)


def test_the_originals_zero_leaves_only_the_bias() -> None:
    model = fresh(distill="MaxS", groups=5, legacy_zero=True).eval()
    torch.testing.assert_close(answer(model, torch.randn(40, 10)).logits, model.tier2.head.bias)


@every_distillation
def test_a_large_bag_is_learned_from_and_its_instances_are_distinguished(distill: str) -> None:
    model = fresh(in_dim=16, dim=16, distill=distill).train()
    output = answer(model, torch.randn(20_000, 16))
    sum(model.losses(output, torch.tensor(1)).values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert output.scores.unique().numel() > 15_000


def test_scores_are_the_predicted_classs_activations() -> None:
    model, x = fresh(num_classes=3).eval(), torch.randn(30, 10)
    output = answer(model, x)
    h, raw = parts(model, x)
    by_hand = raw.softmax(0) * h @ model.tier1.classifier.weight.T
    torch.testing.assert_close(output.class_scores, by_hand)
    torch.testing.assert_close(output.scores, by_hand[:, output.logits.argmax()])


@pytest.mark.parametrize(
    "wrong",
    [
        {"distill": "MaxMin"},
        {"groups": 0},
        {"total_instances": 0},
        {"inference_shuffles": -1},
        {"joint": 1},
        {"dim": 0},
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        create_model("dtfd", in_dim=4, num_classes=2, **wrong)
