"""Mean and max pooling against the official implementations, form by form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError

GOLDENS = [
    ("mean_pool", "meanpool_ibmil"),
    ("mean_pool", "meanmil_rrt"),
    ("max_pool", "maxpool_ibmil"),
    ("max_pool", "maxmil_rrt"),
    ("max_pool", "mil_fc_clam"),
]
every_golden = pytest.mark.parametrize(("name", "file_name"), GOLDENS)
every_kind = pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mean_pool", "instances"),
        ("mean_pool", "features"),
        ("max_pool", "instances"),
        ("max_pool", "features"),
        ("max_pool", "instance"),
    ],
)


def official(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key[3:]: array for key, array in file.items() if key.startswith("sd/")}


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


@every_golden
def test_answers_are_the_official_ones(name, file_name, golden) -> None:
    file = golden(file_name)
    model = load_reference(name, official(file))
    x = torch.from_numpy(file["x"])
    output = answer(model, x)
    probabilities = model.probabilities(output)
    ours = {
        "logits": output.logits,
        "prob": probabilities,
        "y_hat": probabilities.argmax(),
        "inst_logits": output.class_scores,
        "inst_probs": output.class_scores.softmax(1),
        "bag": x.mean(0) if name == "mean_pool" else x.amax(0),
        "ce_y1": model.losses(output, torch.tensor(1))["all"],
    }
    for key, array in file.items():
        if key.startswith("out/"):
            found = ours[key[4:]].detach().flatten()
            np.testing.assert_allclose(found, array.flatten(), rtol=0, atol=1e-5)


@every_golden
def test_gradients_are_the_official_ones(name, file_name, golden, assert_gradients) -> None:
    file = golden(file_name)
    model = load_reference(name, official(file))
    loss = model.losses(answer(model, torch.from_numpy(file["x"])), torch.tensor(1))["all"]
    assert assert_gradients(model, file, "ce_y1", loss) >= 2


@pytest.mark.parametrize("name", ["mean_pool", "max_pool"])
@pytest.mark.parametrize(("kind", "count"), [("instances", 525_826), ("features", 2_050)])
def test_there_are_as_many_parameters_as_officially(name, kind, count) -> None:
    with torch.device("meta"):
        model = create_model(name, in_dim=1024, num_classes=2, kind=kind)
    assert sum(p.numel() for p in model.parameters()) == count


def test_with_three_classes_clams_surest_instance_decides() -> None:
    random = np.random.default_rng(1)
    shapes = {"fc.0.weight": (16, 6), "fc.0.bias": (16,)}
    shapes |= {"classifiers.weight": (3, 16), "classifiers.bias": (3,)}
    sd = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    x = random.standard_normal((40, 6)).astype(np.float32)
    h = np.maximum(x @ sd["fc.0.weight"].T + sd["fc.0.bias"], 0)
    table = (h @ sd["classifiers.weight"].T + sd["classifiers.bias"]) * 0.1
    sd |= {key: sd[key] * np.float32(0.1) for key in ("classifiers.weight", "classifiers.bias")}
    probabilities = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    row, column = np.unravel_index(probabilities.argmax(), probabilities.shape)
    model = load_reference("max_pool", sd)
    output = answer(model, torch.from_numpy(x))
    np.testing.assert_allclose(output.logits.detach(), table[row], atol=1e-5)
    assert model.probabilities(output).argmax().item() == column
    np.testing.assert_allclose(output.scores.detach(), table[:, column], atol=1e-5)


def test_with_a_single_output_the_largest_logit_decides() -> None:
    model = create_model("max_pool", in_dim=4, num_classes=1, kind="instance").eval()
    output = answer(model, torch.randn(30, 4))
    assert output.logits.item() == output.scores.max().item()


def test_each_class_of_the_maximum_may_take_another_instance() -> None:
    model = create_model("max_pool", in_dim=4, num_classes=3).eval()
    output = answer(model, torch.randn(50, 4))
    assert output.class_scores.argmax(0).unique().numel() > 1
    assert output.logits.equal(output.class_scores.amax(0))


@pytest.mark.parametrize("num_classes", [1, 3])
def test_the_logit_is_the_mean_of_the_scores(num_classes: int) -> None:
    model = create_model("mean_pool", in_dim=5, num_classes=num_classes, kind="features").eval()
    output = answer(model, torch.randn(20, 5))
    torch.testing.assert_close(output.class_scores.mean(0), output.logits)
    best = output.logits.argmax()
    assert output.scores.equal(output.class_scores[:, best])


def test_scores_of_the_maximum_of_features_are_the_channels_won() -> None:
    model = create_model("max_pool", in_dim=9, num_classes=2, kind="features").eval()
    x = torch.randn(6, 9)
    output = answer(model, x)
    wanted = torch.zeros(6, 2)
    for channel in range(9):
        wanted[x[:, channel].argmax()] += model.head.weight[:, channel].detach()
    torch.testing.assert_close(output.class_scores, wanted)


@every_kind
def test_weights_start_as_officially(name: str, kind: str) -> None:
    model = create_model(name, in_dim=400, num_classes=2, kind=kind)
    layer = model.head if kind == "features" else model.project[0]
    if kind == "instances":
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 912), rel=0.02)
        assert (layer.bias == 0).all()
    else:
        assert layer.weight.abs().max().item() == pytest.approx(1 / math.sqrt(400), rel=0.02)


@every_kind
@pytest.mark.parametrize("instances", [1, 2, 20_000])
def test_bags_of_any_size_can_be_learned_from(name: str, kind: str, instances: int) -> None:
    for num_classes in (1, 2, 3):
        model = create_model(name, in_dim=6, num_classes=num_classes, kind=kind, hidden=16)
        output = answer(model, torch.randn(instances, 6))
        model.losses(output, torch.tensor(0))["all"].backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_wrong_kinds_and_foreign_checkpoints_are_refused() -> None:
    with pytest.raises(OptionError, match="kind='instance' is not known"):
        create_model("mean_pool", in_dim=4, num_classes=2, kind="instance")
    with pytest.raises(ModelError, match=r"head\.3\.weight is missing"):
        load_reference("max_pool", {"fc.0.weight": np.zeros((2, 4), np.float32)})
