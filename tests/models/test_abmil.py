"""AB-MIL against the official implementations, and against its equations written as a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError

GOLDENS = [
    ("abmil", "abmil_official", {}),
    ("abmil", "abmil_wsi_relu", {}),
    ("abmil", "abmil_ibmil_plain", {}),
    ("abmil_gated", "abmil_wsi_gated_tanh", {"activation": "tanh"}),
    ("abmil_gated", "abmil_wsi_gated_relu", {}),
]
every_golden = pytest.mark.parametrize(("name", "file_name", "options"), GOLDENS)


def official(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key[3:]: array for key, array in file.items() if key.startswith("sd/")}


def answer(model, x: np.ndarray):
    return model(torch.from_numpy(x), torch.zeros(len(x), 2))


def loss_of(model, output, key: str) -> torch.Tensor:
    """Golden losses are all for class 1; IBMIL's is a binary one per class."""
    if key.startswith("bce"):
        return F.binary_cross_entropy_with_logits(output.logits, torch.tensor([0.0, 1.0]))
    return model.losses(output, torch.tensor(1))["all"]


@every_golden
def test_answers_are_the_official_ones(name, file_name, options, golden) -> None:
    file = golden(file_name)
    model = load_reference(name, official(file), **options)
    output = answer(model, file["x"])
    h = model.project(torch.from_numpy(file["x"]))
    ours = {
        "logits": output.logits,
        "prob": output.logits.sigmoid(),
        "y_hat": (model.probabilities(output) >= 0.5).float(),
        "attention": output.scores,
        "attention_raw": model.attention(h),
        "bag": output.scores @ h,
    }
    outputs = {key[4:]: array for key, array in file.items() if key.startswith("out/")}
    for key, array in outputs.items():
        found = ours[key] if key in ours else loss_of(model, output, key)
        np.testing.assert_allclose(found.detach().flatten(), array.flatten(), rtol=0, atol=1e-5)
    assert outputs


@every_golden
def test_gradients_are_the_official_ones(
    name, file_name, options, golden, assert_gradients
) -> None:
    file = golden(file_name)
    model = load_reference(name, official(file), **options)
    output = answer(model, file["x"])
    for key in {key.split("/")[1] for key in file if key.startswith("grad/")}:
        assert assert_gradients(model, file, key, loss_of(model, output, key)) > 3


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("abmil", {}, 591_619),
        ("abmil_gated", {}, 657_026),
        ("abmil", {"hidden": None, "attention_dim": None}, 1_052_675),
        ("abmil", {"in_dim": 800, "num_classes": 1, "hidden": 500}, 465_258),
        (
            "abmil_gated",
            {"in_dim": 800, "num_classes": 1, "hidden": 500, "attention_bias": True},
            529_386,
        ),
    ],
)
def test_there_are_as_many_parameters_as_officially(name, options, count) -> None:
    with torch.device("meta"):
        model = create_model(name, **{"in_dim": 1024, "num_classes": 2, **options})
    assert sum(p.numel() for p in model.parameters()) == count


def test_the_gated_model_of_amlab_is_its_equations_in_a_loop() -> None:
    random = np.random.default_rng(3)
    shapes = {
        "feature_extractor_part1.0.weight": (20, 1, 5, 5),
        "feature_extractor_part2.0.weight": (10, 6),
        "feature_extractor_part2.0.bias": (10,),
        "attention_V.0.weight": (4, 10),
        "attention_V.0.bias": (4,),
        "attention_U.0.weight": (4, 10),
        "attention_U.0.bias": (4,),
        "attention_w.weight": (1, 4),
        "attention_w.bias": (1,),
        "classifier.0.weight": (1, 10),
        "classifier.0.bias": (1,),
    }
    sd = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    x = random.standard_normal((7, 6))
    powers, rows = [], []
    for row in x:
        h = sd["feature_extractor_part2.0.weight"] @ row + sd["feature_extractor_part2.0.bias"]
        h = np.maximum(h, 0)
        v = np.tanh(sd["attention_V.0.weight"] @ h + sd["attention_V.0.bias"])
        u = 1 / (1 + np.exp(-sd["attention_U.0.weight"] @ h - sd["attention_U.0.bias"]))
        powers.append(math.exp((sd["attention_w.weight"] @ (v * u) + sd["attention_w.bias"])[0]))
        rows.append(h)
    weights = np.array(powers) / sum(powers)
    bag = sum(w * h for w, h in zip(weights, rows, strict=True))
    model = load_reference("abmil_gated", sd).double()
    output = answer(model, x)
    np.testing.assert_allclose(output.scores.detach(), weights, atol=1e-6)
    wanted = sd["classifier.0.weight"] @ bag + sd["classifier.0.bias"]
    np.testing.assert_allclose(output.logits.detach(), wanted, atol=1e-5)


def test_gelu_is_the_exact_one() -> None:
    model = create_model("abmil", in_dim=3, num_classes=2, activation="gelu").eval()
    x = torch.linspace(-2, 2, 12).reshape(4, 3)
    before = model.project[0](x)
    wanted = before * 0.5 * (1 + torch.erf(before / math.sqrt(2)))
    torch.testing.assert_close(model.project(x), wanted)


@pytest.mark.parametrize("name", ["abmil", "abmil_gated"])
def test_weights_start_as_the_slide_variant_or_as_torch_draws_them(name: str) -> None:
    xavier = create_model(name, in_dim=300, num_classes=2)
    weight = xavier.project[0].weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (300 + 512)), rel=0.02)
    assert all((p == 0).all() for n, p in xavier.named_parameters() if n.endswith("bias"))
    torchs = create_model(name, in_dim=300, num_classes=2, init="torch").project[0]
    assert torchs.weight.abs().max().item() == pytest.approx(1 / math.sqrt(300), rel=0.01)
    assert (torchs.bias != 0).any()


@pytest.mark.parametrize("name", ["abmil", "abmil_gated"])
def test_a_quarter_of_the_projected_values_drops_in_training_only(name: str) -> None:
    model = create_model(name, in_dim=8, num_classes=2)
    x = torch.randn(200, 8)
    kept = model.eval().project(x)
    dropped = model.train().project(x)
    lost = ((dropped == 0) & (kept > 0)).sum() / (kept > 0).sum()
    assert lost.item() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("name", ["abmil", "abmil_gated"])
def test_weights_of_twenty_thousand_instances_sum_to_one(name: str) -> None:
    model = create_model(name, in_dim=16, num_classes=2, hidden=32, attention_dim=16)
    output = model(torch.randn(20_000, 16), torch.zeros(20_000, 2))
    model.losses(output, torch.tensor(0))["all"].backward()
    assert output.scores.sum().item() == pytest.approx(1, abs=1e-4)
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_the_only_instance_has_all_the_weight() -> None:
    model = create_model("abmil_gated", in_dim=4, num_classes=1).eval()
    assert model(torch.randn(1, 4), torch.zeros(1, 2)).scores.tolist() == [1.0]


def test_wrong_options_and_foreign_checkpoints_are_refused() -> None:
    for options in ({"activation": "tanh"}, {"init": "zeros"}, {"dropout": 2}, {"hidden": 0}):
        with pytest.raises(OptionError):
            create_model("abmil", in_dim=4, num_classes=2, **options)
    with pytest.raises(ModelError, match=r"attention\.0\.weight is missing"):
        load_reference("abmil", {"classifier.weight": np.zeros((2, 4), np.float32)})
