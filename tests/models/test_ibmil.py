"""IBMIL against the official implementation; where its dictionary comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sacmil import create_model
from sacmil.errors import ModelError, OptionError
from sacmil.models import Output, Recipe, Sample, load_model, load_reference, save_model
from sacmil.models.ibmil import BASES, IBMIL, MERGES, cluster_prototypes
from sacmil.plans import make_plan
from sacmil.training.trainer import Trainer

Arrays = dict[str, np.ndarray]
Golden = Callable[[str], Arrays]

every_base = pytest.mark.parametrize("base", BASES)


def state_of(file: Arrays) -> Arrays:
    return {key[3:]: value for key, value in file.items() if key.startswith("sd/")}


def answer(model: IBMIL, x: np.ndarray | torch.Tensor) -> Output:
    x = torch.as_tensor(x)
    return model(x, torch.zeros(len(x), 2))


def assert_close(ours: torch.Tensor, theirs: np.ndarray) -> None:
    assert ours.numel() == theirs.size
    np.testing.assert_allclose(
        ours.detach().numpy().reshape(theirs.shape), theirs, atol=1e-5, rtol=0
    )


def fresh(**options: Any) -> IBMIL:
    return create_model("ibmil", **{"in_dim": 10, "num_classes": 2, "dim": 6} | options)


def bags(count: int, dim: int = 10) -> list[Sample]:
    made = []
    for label in range(count):
        features = torch.randn(20 + label, dim) + label % 2
        coords = torch.zeros(len(features), 2)
        plan = make_plan("orders", {"shuffles": 0}, coords.numpy())
        made.append(Sample(features, coords, plan, torch.tensor(label % 2)))
    return made


# --- against the official implementation ---------------------------------------------------------


@pytest.mark.parametrize("merge", ["cat", "sub"])
def test_on_abmil_outputs_and_gradients_are_the_official_ones(
    golden: Golden, assert_gradients: Callable[..., int], merge: str
) -> None:
    file = golden(f"ibmil_abmil_{merge}")
    model = load_reference("ibmil", state_of(file), base="abmil", merge=merge, loss="bce")
    output = answer(model, file["x"])
    assert_close(output.logits, file["out/logits"])
    assert_close(output.extras["bag"], file["out/bag"])
    assert_close(output.extras["confounders"], file["out/conf_attention"])
    loss = model.losses(output, torch.tensor(1))["all"]
    assert assert_gradients(model, file, "bce_y10", loss) == len(state_of(file)) - 1


def test_without_confounders_abmil_is_the_official_plain_one(
    golden: Golden, assert_gradients: Callable[..., int]
) -> None:
    file = golden("abmil_ibmil_plain")
    model = load_reference("ibmil", state_of(file), loss="bce")
    output = answer(model, file["x"])
    assert model.options["confounders"] == 0
    assert_close(output.logits, file["out/logits"])
    assert_close(output.extras["bag"], file["out/bag"])
    assert_close(output.scores, file["out/attention"])
    loss = model.losses(output, torch.tensor(1))["all"]
    assert assert_gradients(model, file, "bce_y10", loss) == len(state_of(file))


def test_on_dtfd_the_whole_slide_is_answered_as_officially(golden: Golden) -> None:
    file = golden("ibmil_dtfd_full")
    output = answer(load_reference("ibmil", state_of(file), base="dtfd"), file["x"])
    assert_close(output.extras["tier1"], file["out/tier1_logits"])
    assert_close(output.extras["distilled"], file["out/tier2_in"])
    assert_close(output.logits, file["out/tier2_logits"])
    assert_close(output.logits.sigmoid(), file["out/prob"])
    assert_close(output.extras["bag"], file["out/bag"])
    assert_close(output.extras["confounders"], file["out/conf_attention"])


def second_tier(golden: Golden) -> tuple[IBMIL, Arrays, Arrays]:
    """The second tier's golden inside a model whose first tier is of no concern."""
    file = golden("ibmil_dtfd_tier2")
    whole = state_of(golden("ibmil_dtfd_full"))
    whole |= {f"att_classifier.{name}": value for name, value in state_of(file).items()}
    return load_reference("ibmil", whole, loss="bce"), file, whole


def test_on_dtfd_the_second_tier_and_its_gradients_are_the_official_ones(
    golden: Golden, assert_gradients: Callable[..., int]
) -> None:
    model, file, state = second_tier(golden)
    rows = torch.from_numpy(file["x"])
    assert_close(model.tier2.weights(rows), file["out/tier2_attention"])
    found = model.tier2.head(model.tier2.pool([rows]))
    assert_close(found.logits, file["out/logits"])
    assert_close(found.features, file["out/bag"])
    assert_close(found.attention, file["out/conf_attention"])
    loss = model.losses(
        Output(found.logits[0], rows, extras={"tier1": found.logits}), torch.tensor(1)
    )
    assert_close(loss["tier2"], file["out/bce"])
    named = {
        key.replace("grad/bce/", "grad/bce/att_classifier."): value for key, value in file.items()
    }
    compared = assert_gradients(model, named, "bce", loss["tier2"], state=state)
    assert compared == len(state_of(file)) - 1


def test_k_means_finds_the_official_prototypes(golden: Golden) -> None:
    file = golden("ibmil_kmeans")
    theirs = file["out/prototypes_sorted_by_dim0"]
    ours = cluster_prototypes(file["x"].astype(np.float64), len(theirs))
    np.testing.assert_allclose(ours[ours[:, 0].argsort()], theirs, atol=1e-5)


@pytest.mark.parametrize(("num_classes", "size"), [(2, 921_606), (1, 920_068)])
def test_on_dtfd_there_are_as_many_parameters_as_officially(num_classes: int, size: int) -> None:
    with torch.device("meta"):
        model = create_model("ibmil", in_dim=1024, num_classes=num_classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == size


@pytest.mark.parametrize(("merge", "size"), [("cat", 1_317_123), ("sub", 1_315_075)])
def test_on_abmil_there_are_as_many_parameters_as_officially(merge: str, size: int) -> None:
    with torch.device("meta"):
        model = create_model("ibmil", in_dim=1024, num_classes=2, base="abmil", merge=merge)
    assert sum(parameter.numel() for parameter in model.parameters()) == size


def test_another_checkpoint_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"not an official ibmil: attention\.0\.weight"):
        load_reference("ibmil", {"fc.weight": np.zeros((2, 3))})


# --- adjustment ----------------------------------------------------------------------------------


@every_base
@pytest.mark.parametrize("merge", MERGES)
def test_the_mean_confounder_enters_as_the_merge_says(base: str, merge: str) -> None:
    model = fresh(base=base, merge=merge).eval()
    head = model.tier2.head
    width = head.confounders.shape[1]
    vector = torch.randn(1, width)
    found = head(vector)
    mean = found.attention @ head.confounders
    wanted = {"cat": torch.cat((vector, mean), 1), "add": vector + mean, "sub": vector - mean}[
        merge
    ]
    torch.testing.assert_close(found.features, wanted)
    assert found.attention.sum().item() == pytest.approx(1)


def test_an_add_checkpoint_is_recognised_and_sub_can_be_given() -> None:
    model = fresh(base="abmil", merge="add").eval()
    names = {"value": "attention.0", "weight": "attention.2"}
    state = {
        f"{names[part]}.{kind}": getattr(getattr(model.tier2.attention, part), kind).detach()
        for part in names
        for kind in ("weight", "bias")
    }
    for official, ours in {"W_q": "query", "W_k": "key", "classifier": "out"}.items():
        layer = getattr(model.tier2.head, ours)
        state |= {
            f"{official}.weight": layer.weight.detach(),
            f"{official}.bias": layer.bias.detach(),
        }
    state["confounder_feat"] = model.tier2.head.confounders
    x = torch.randn(12, 10)
    again = load_reference("ibmil", state)
    assert again.options["merge"] == "add"
    torch.testing.assert_close(answer(again, x).logits, answer(model, x).logits)
    other = load_reference("ibmil", state, base="abmil", merge="sub")
    assert not torch.allclose(answer(other, x).logits, answer(model, x).logits)


def test_bce_asks_each_class_by_itself() -> None:
    model = fresh(num_classes=3, loss="bce").eval()
    output = answer(model, torch.randn(30, 10))
    losses = model.losses(output, torch.tensor(2))
    wanted = torch.tensor([0.0, 0.0, 1.0])
    pseudo = output.extras["tier1"]
    by_hand = F.binary_cross_entropy(pseudo.sigmoid(), wanted.expand(len(pseudo), 3))
    torch.testing.assert_close(losses["tier1"], by_hand)
    by_hand = F.binary_cross_entropy(output.logits.sigmoid(), wanted)
    torch.testing.assert_close(losses["tier2"], by_hand)
    sigmoids = output.logits.sigmoid()
    torch.testing.assert_close(model.probabilities(output), sigmoids / sigmoids.sum())


def test_the_second_tiers_loss_never_moves_the_first() -> None:
    model = fresh().train()
    model.losses(answer(model, torch.randn(40, 10)), torch.tensor(1))["tier2"].backward()
    assert all(parameter.grad is None for parameter in model.tier1.parameters())
    assert all(parameter.grad is not None for parameter in model.tier2.parameters())


# --- the dictionary ------------------------------------------------------------------------------


def test_clusters_are_of_directions_and_prototypes_keep_lengths() -> None:
    # By length the two short vectors belong together, by direction each to a long one.
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [100.0, 1.0], [1.0, 100.0]])
    found = cluster_prototypes(vectors, 2)
    wanted = np.array([[0.5, 50.5], [50.5, 0.5]])
    np.testing.assert_allclose(found[found[:, 0].argsort()], wanted)


def test_k_means_recovers_well_separated_blobs_at_any_seed() -> None:
    random = np.random.default_rng(0)
    centres = 10 * np.eye(12, 16)
    vectors = np.repeat(centres, 8, axis=0) + 0.7 * random.standard_normal((96, 16))
    wanted = vectors.reshape(12, 8, 16).mean(1)
    for seed in range(20):
        found = cluster_prototypes(vectors, 12, seed=100 * seed)
        np.testing.assert_allclose(found[found.argmax(1).argsort()], wanted)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_vectors_than_confounders_are_filled_up_with_their_mean(count: int) -> None:
    vectors = np.eye(3)[:count] * 5
    found = cluster_prototypes(vectors, 8)
    for vector in vectors:
        assert (np.abs(found - vector).max(1) < 1e-12).any()
    np.testing.assert_allclose(found[count:], np.tile(vectors.mean(0), (8 - count, 1)))


def test_equal_and_zero_vectors_make_a_finite_dictionary() -> None:
    for vectors in (np.ones((20, 3)), np.zeros((20, 3))):
        np.testing.assert_allclose(cluster_prototypes(vectors, 4), vectors[:4])


# --- stages --------------------------------------------------------------------------------------


def train(model: IBMIL, samples: list[Sample], steps: int = 3) -> list[IBMIL]:
    stages = []
    for stage in model.stages(samples):
        trainer = Trainer(stage, Recipe(lr=1e-2, clip=IBMIL.recipes["official"].clip))
        for _ in range(steps):
            trainer.step(samples)
        stages.append(stage)
    return stages


@every_base
def test_the_dictionary_is_made_of_the_training_bags_vectors(base: str) -> None:
    samples = bags(12)
    model = fresh(base=base, confounders=3)
    plain, last = train(model, samples)
    assert last is model
    assert plain.options["confounders"] == 0
    vectors = [answer(plain.eval(), s.features).extras["bag"].detach() for s in samples]
    wanted = cluster_prototypes(torch.stack(vectors).double().numpy(), 3)
    np.testing.assert_allclose(model.tier2.head.confounders.numpy(), wanted, atol=1e-5)


def test_every_bag_is_its_own_prototype_when_there_are_few() -> None:
    samples = bags(2)
    model = fresh(base="abmil", confounders=2)
    plain, _ = train(model, samples)
    vectors = torch.stack([answer(plain.eval(), s.features).extras["bag"] for s in samples])
    distances = torch.cdist(vectors.detach(), model.tier2.head.confounders)
    assert distances.min(1).values.max() < 1e-4


def test_a_frozen_projection_is_the_first_stages_and_stays() -> None:
    model = fresh(freeze_projection=True)
    assert "tier1.project.weight" not in model.parameter_groups()["tier1"]
    plain, _ = train(model, bags(4))
    assert plain.tier1.project.weight.requires_grad
    torch.testing.assert_close(
        model.tier1.project.weight, plain.tier1.project.weight, check_stride=False
    )


def test_by_default_a_new_projection_is_learned() -> None:
    model = fresh()
    before = model.tier1.project.weight.clone()
    plain, _ = train(model, bags(4))
    assert not torch.equal(model.tier1.project.weight, before)
    assert not torch.allclose(model.tier1.project.weight, plain.tier1.project.weight)


def test_without_confounders_there_is_one_stage() -> None:
    model = fresh(confounders=0)
    assert list(model.stages([])) == [model]


@every_base
def test_a_model_folder_keeps_the_dictionary(base: str, tmp_path: Path) -> None:
    model = fresh(base=base, confounders=3)
    train(model, bags(6))
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model")
    assert torch.equal(again.tier2.head.confounders, model.tier2.head.confounders)
    x = torch.randn(20, 10)
    assert torch.equal(answer(again, x).logits, answer(model.eval(), x).logits)


def test_the_official_rate_falls_after_the_tenth_of_nineteen_epochs() -> None:
    trainer = Trainer(fresh(), IBMIL.recipes["official"])
    assert [trainer.lr_at(epoch) for epoch in (0, 9.9, 10)] == pytest.approx([1e-4, 1e-4, 2e-5])


@pytest.mark.parametrize("recipe", sorted(IBMIL.recipes))
def test_a_recipes_options_are_the_constructors(recipe: str) -> None:
    chosen = IBMIL.recipes[recipe]
    train_once = Trainer(fresh(**chosen.options), chosen)
    assert np.isfinite(list(train_once.step(bags(1)).values())).all()


# --- bags of any size ----------------------------------------------------------------------------


@every_base
@pytest.mark.parametrize("loss", ["ce", "bce"])
@pytest.mark.parametrize("num_classes", [1, 2, 4])
@pytest.mark.parametrize("instances", [1, 2, 3, 9, 20_000])
def test_bags_of_any_size_are_learned_from(
    base: str, loss: str, num_classes: int, instances: int
) -> None:
    model = fresh(base=base, loss=loss, num_classes=num_classes).train()
    output = answer(model, torch.randn(instances, 10))
    sum(model.losses(output, torch.tensor(0)).values()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert output.scores.shape == (instances,)


def test_scores_are_attention_on_abmil_and_activations_on_dtfd() -> None:
    x = torch.randn(30, 10)
    model = fresh(base="abmil").eval()
    weights = model.tier2.attention(x).softmax(0)[:, 0]
    torch.testing.assert_close(answer(model, x).scores, weights)
    model = fresh(num_classes=3).eval()
    output = answer(model, x)
    h = model.tier1.project(x).relu()
    by_hand = model.tier1.activations(h, model.tier1.attention(h))
    torch.testing.assert_close(output.class_scores, by_hand)
    torch.testing.assert_close(output.scores, by_hand[:, output.logits.argmax()])


def test_averaged_shuffles_give_the_mean_sigmoid() -> None:
    model, x = fresh(loss="bce", inference_shuffles=3).eval(), torch.randn(50, 10)
    orders = model.plan(np.zeros((50, 2)))["orders"]
    single = fresh(loss="bce").eval()
    single.load_state_dict(model.state_dict())
    wanted = torch.stack([answer(single, x[order]).logits.sigmoid() for order in orders]).mean(0)
    torch.testing.assert_close(answer(model, x).logits.sigmoid(), wanted)


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": "clam"},
        {"merge": "mul"},
        {"confounders": -1},
        {"loss": "svm"},
        {"distill": "max"},
        {"freeze_projection": True, "base": "abmil"},
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        create_model("ibmil", in_dim=4, num_classes=2, **wrong)
