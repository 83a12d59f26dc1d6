"""DSMIL against the official implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError

GOLDENS = pytest.mark.parametrize("file_name", ["dsmil_c1", "dsmil_c2", "dsmil_c2_linq"])


def official(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key[3:]: array for key, array in file.items() if key.startswith("sd/")}


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


@GOLDENS
def test_answers_are_the_official_ones(file_name, golden) -> None:
    file = golden(file_name)
    model = load_reference("dsmil", official(file), loss="bce")
    x = torch.from_numpy(file["x"])
    output = answer(model, x)
    strongest = output.extras["strongest"].sigmoid()
    both = strongest + output.logits.sigmoid()
    softmax = load_reference("dsmil", official(file), loss="ce")
    ours = {
        "inst_logits": model.instances(x),
        "bag_logits": output.logits,
        "attention": output.class_scores,
        "bag": output.class_scores.T @ model.value(x),
        "loss": model.losses(output, torch.tensor(1))["all"],
        "loss_ce": softmax.losses(answer(softmax, x), torch.tensor(1))["all"],
        "prob_bag": output.logits.sigmoid(),
        "prob_sum_headavg": both,
        "prob_avg": both / 2,
    }
    for key, array in file.items():
        if key.startswith("out/"):
            found = ours[key[4:]].detach().flatten()
            np.testing.assert_allclose(found, array.flatten(), rtol=0, atol=1e-5)


@GOLDENS
def test_gradients_are_the_official_ones(file_name, golden, assert_gradients) -> None:
    file = golden(file_name)
    model = load_reference("dsmil", official(file), loss="bce")
    output = answer(model, torch.from_numpy(file["x"]))
    loss = model.losses(output, torch.tensor(1))["all"]
    assert assert_gradients(model, file, "loss", loss) > 3


@GOLDENS
@pytest.mark.parametrize(("average", "key"), [(False, "out/prob_bag"), (True, "out/prob_avg")])
def test_probabilities_are_the_official_ones_made_to_sum_to_one(
    file_name, average, key, golden
) -> None:
    file = golden(file_name)
    model = load_reference("dsmil", official(file), loss="bce", average=average)
    found = model.probabilities(answer(model, torch.from_numpy(file["x"]))).detach()
    wanted = file[key].flatten()
    wanted = wanted / wanted.sum() if wanted.size > 1 else wanted
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("num_classes", "options", "count"),
    [(2, {}, 153_860), (1, {}, 149_762), (2, {"nonlinear": False}, 137_348)],
)
def test_there_are_as_many_parameters_as_officially(num_classes, options, count) -> None:
    with torch.device("meta"):
        model = create_model("dsmil", in_dim=1024, num_classes=num_classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count


def test_passed_values_are_the_equations_in_a_loop() -> None:
    random = np.random.default_rng(2)
    shapes = {
        "i_classifier.fc.0.weight": (2, 5),
        "i_classifier.fc.0.bias": (2,),
        "b_classifier.q.0.weight": (128, 5),
        "b_classifier.q.0.bias": (128,),
        "b_classifier.q.2.weight": (128, 128),
        "b_classifier.q.2.bias": (128,),
        "b_classifier.v.1.weight": (5, 5),
        "b_classifier.v.1.bias": (5,),
        "b_classifier.fcc.weight": (2, 2, 5),
        "b_classifier.fcc.bias": (2,),
    }
    sd = {name: 0.3 * random.standard_normal(shape) for name, shape in shapes.items()}
    part = {name.removeprefix("b_classifier."): array for name, array in sd.items()}
    x = random.standard_normal((9, 5))
    inner = np.maximum(x @ part["q.0.weight"].T + part["q.0.bias"], 0)
    q = np.tanh(inner @ part["q.2.weight"].T + part["q.2.bias"])
    v = np.maximum(x @ part["v.1.weight"].T + part["v.1.bias"], 0)
    instances = x @ sd["i_classifier.fc.0.weight"].T + sd["i_classifier.fc.0.bias"]
    bags = []
    for c in range(2):
        critical = q[instances[:, c].argmax()]
        e = np.exp([row @ critical / np.sqrt(128) for row in q])
        bags.append(sum(w * row for w, row in zip(e / e.sum(), v, strict=True)))
    wanted = [
        sum(part["fcc.weight"][o, c] @ bags[c] for c in range(2)) + part["fcc.bias"][o]
        for o in range(2)
    ]
    model = load_reference("dsmil", sd).double()
    output = answer(model, torch.from_numpy(x))
    np.testing.assert_allclose(output.logits.detach(), wanted, atol=1e-5)


def test_the_loss_of_the_bag_does_not_reach_the_instance_classifier() -> None:
    model = create_model("dsmil", in_dim=6, num_classes=3)
    output = answer(model, torch.randn(20, 6))
    output.logits.sum().backward()
    assert model.instances.weight.grad is None
    assert (model.query[0].weight.grad != 0).any()


def test_weights_start_orthogonal() -> None:
    model = create_model("dsmil", in_dim=200, num_classes=2, passing_v=True)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            gram = parameter @ parameter.T
            torch.testing.assert_close(gram, torch.eye(len(gram)), atol=1e-5, rtol=0)


def test_probabilities_next_to_nothing_still_sum_to_one() -> None:
    model = create_model("dsmil", in_dim=6, num_classes=2, loss="bce")
    output = answer(model, torch.randn(3, 6))._replace(logits=torch.tensor([-300.0, -302.0]))
    assert model.probabilities(output).tolist() == pytest.approx([0.880797, 0.119203], abs=1e-5)


def test_scores_are_the_attention_of_the_predicted_class() -> None:
    model = create_model("dsmil", in_dim=6, num_classes=3).eval()
    output = answer(model, torch.randn(20, 6))
    assert output.scores.equal(output.class_scores[:, output.logits.argmax()])
    torch.testing.assert_close(output.class_scores.sum(0), torch.ones(3))


@pytest.mark.parametrize("loss", ["ce", "bce"])
@pytest.mark.parametrize("instances", [1, 2, 20_000])
def test_bags_of_any_size_can_be_learned_from(loss: str, instances: int) -> None:
    for num_classes in (1, 2, 3):
        options = {"num_classes": num_classes, "loss": loss, "query_dim": 16}
        model = create_model("dsmil", in_dim=6, average=True, **options)
        output = answer(model, torch.randn(instances, 6))
        model.losses(output, torch.tensor(0))["all"].backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        if num_classes > 1:
            assert model.probabilities(output).sum().item() == pytest.approx(1, abs=1e-6)


def test_wrong_options_and_foreign_checkpoints_are_refused() -> None:
    for options in ({"loss": "nll"}, {"passing_v": 1}, {"dropout": -0.1}, {"query_dim": 0}):
        with pytest.raises(OptionError):
            create_model("dsmil", in_dim=4, num_classes=2, **options)
    with pytest.raises(ModelError, match=r"i_classifier\.fc\.0\.weight is missing"):
        load_reference("dsmil", {"b_classifier.fcc.weight": np.zeros((2, 2, 4), np.float32)})
