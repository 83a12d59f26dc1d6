"""CLAM against the official implementation: answers, picked instances, losses, gradients."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models.clam import smooth_top1_svm

both = pytest.mark.parametrize("name", ["clam_sb", "clam_mb"])


def official(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key[3:]: array for key, array in file.items() if key.startswith("sd/")}


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


def cases(file: dict[str, np.ndarray]) -> list[tuple[str, dict[str, object], torch.Tensor]]:
    """Each way of training the file has: its name, our options, the bag's label."""
    names = {key[10:] for key in file if key.startswith("out/total_")}
    assert names
    out = []
    for name in sorted(names):
        loss, subtyping, label = re.fullmatch(r"(ce|svm)_sub(\d)_y(\d)", name).groups()
        options = {"instance_loss": loss, "subtyping": subtyping == "1"}
        out.append((name, options, torch.tensor(int(label))))
    return out


@both
def test_answers_are_the_official_ones(name, golden) -> None:
    file = golden(name)
    model = load_reference(name, official(file))
    output = answer(model, torch.from_numpy(file["x"]))
    raw = output.extras["attention"] if name == "clam_mb" else output.scores[:, None]
    ours = {
        "logits": output.logits,
        "prob": model.probabilities(output),
        "y_hat": output.logits.argmax(),
        "attention_raw": raw.T,
        "attention": raw.softmax(0).T,
        "features": output.extras["bags"],
    }
    for key, found in ours.items():
        if f"out/{key}" in file:
            wanted = file[f"out/{key}"].flatten()
            np.testing.assert_allclose(found.detach().flatten(), wanted, rtol=0, atol=1e-5)
    assert "out/logits" in file


def iter_terms(model, output, target):
    """Logits and labels of the instances that count, in the order of classes."""
    terms = [term for term in model.iter_instance_terms(output, target) if term.counts]
    own = [term for term in terms if term.labels.any()]
    others = [term for term in terms if not term.labels.any()]
    place = max(int(target), 0) if own else 0
    in_order = [*others[:place], *own, *others[place:]]
    return [(term.logits, term.labels) for term in in_order]


@both
def test_picked_instances_and_losses_are_the_official_ones(name, golden) -> None:
    file = golden(name)
    for case, options, label in cases(file):
        model = load_reference(name, official(file), **options)
        output = answer(model, torch.from_numpy(file["x"]))
        logits, labels = zip(*iter_terms(model, output, label), strict=True)
        instances_only = load_reference(name, official(file), bag_weight=0.0, **options)
        ours = {
            "inst_preds": torch.cat(logits).argmax(1),
            "inst_targets": torch.cat(labels),
            "inst_loss": instances_only.losses(output, label)["all"],
            "total": model.losses(output, label)["all"],
        }
        for key, found in ours.items():
            if f"out/{key}_{case}" in file:
                wanted = file[f"out/{key}_{case}"]
                np.testing.assert_allclose(found.detach(), wanted, rtol=0, atol=1e-5, err_msg=case)


@both
def test_gradients_are_the_official_ones(name, golden, assert_gradients) -> None:
    file = golden(name)
    compared = 0
    for case, options, label in cases(file):
        model = load_reference(name, official(file), **options)
        output = answer(model, torch.from_numpy(file["x"]))
        loss = model.losses(output, label)["all"]
        compared += assert_gradients(model, file, f"total_{case}", loss)
    assert compared > 8


def test_the_smooth_svm_is_the_official_one(golden) -> None:
    file = golden("smooth_top1_svm")
    for scores, labels, end in (("x", "in/y", ""), ("in/logits3", "in/y3", "3")):
        s = torch.from_numpy(file[scores]).requires_grad_()
        rows = smooth_top1_svm(s, torch.from_numpy(file[labels]))
        rows.mean().backward()
        np.testing.assert_allclose(rows.mean().item(), file[f"out/loss{end}"], atol=1e-5)
        np.testing.assert_allclose(s.grad, file[f"out/grad{end}"], atol=1e-5)
        if f"out/per_sample{end}" in file:
            np.testing.assert_allclose(rows.detach(), file[f"out/per_sample{end}"], atol=1e-5)


def test_the_smooth_svm_is_hard_where_the_best_score_leads_by_far() -> None:
    scores = torch.tensor([[0.0, 7.0], [7.0, 0.0], [0.0, 6.9]], requires_grad=True)
    rows = smooth_top1_svm(scores, torch.tensor([1, 1, 1]))
    assert rows[:2].tolist() == [0.0, 8.0]
    assert rows[2].item() > 0


@pytest.mark.parametrize(
    ("name", "attention_dim", "count"),
    [
        ("clam_sb", 256, 790_791),
        ("clam_sb", 384, 922_247),
        ("clam_mb", 256, 791_048),
        ("clam_mb", 384, 922_632),
    ],
)
def test_there_are_as_many_parameters_as_officially(name, attention_dim, count) -> None:
    with torch.device("meta"):
        model = create_model(name, in_dim=1024, num_classes=2, attention_dim=attention_dim)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("index", [2, 3])
@pytest.mark.parametrize("last", [2, 3])
def test_attention_without_a_gate_is_the_equations_in_a_loop(index: int, last: int) -> None:
    random = np.random.default_rng(4)
    net = f"attention_net.{index}.module"
    shapes = {"attention_net.0": (8, 5), f"{net}.0": (6, 8), f"{net}.{last}": (1, 6)}
    shapes |= {"classifiers": (3, 8)} | {f"instance_classifiers.{c}": (2, 8) for c in range(3)}
    sd = {"instance_loss_fn.labels": np.array([0, 1])}
    for name, shape in shapes.items():
        sd |= {f"{name}.weight": random.standard_normal(shape)}
        sd |= {f"{name}.bias": random.standard_normal(shape[0])}
    x = random.standard_normal((7, 5))
    h = np.maximum(x @ sd["attention_net.0.weight"].T + sd["attention_net.0.bias"], 0)
    inner = np.tanh(h @ sd[f"{net}.0.weight"].T + sd[f"{net}.0.bias"])
    raw = (inner @ sd[f"{net}.{last}.weight"].T + sd[f"{net}.{last}.bias"])[:, 0]
    bag = np.exp(raw) / np.exp(raw).sum() @ h
    output = answer(load_reference("clam_sb", sd).double(), torch.from_numpy(x))
    np.testing.assert_allclose(output.scores.detach(), raw, atol=1e-5)
    wanted = sd["classifiers.weight"] @ bag + sd["classifiers.bias"]
    np.testing.assert_allclose(output.logits.detach(), wanted, atol=1e-5)


@both
def test_picked_instances_train_the_projection_but_not_the_attention(name: str) -> None:
    model = create_model(name, in_dim=6, num_classes=2, bag_weight=0.0, subtyping=True)
    output = answer(model, torch.randn(40, 6))
    model.losses(output, torch.tensor(1))["all"].backward()
    assert (model.project[0].weight.grad != 0).any()
    assert (model.instance_head.weight.grad != 0).any(1).all()
    reached = [p.grad for p in model.attention.parameters() if p.grad is not None]
    assert all((gradient == 0).all() for gradient in reached)


@both
@pytest.mark.parametrize("instances", [1, 2, 3, 7, 15, 16, 40])
def test_no_instance_stands_for_and_against_its_class(name: str, instances: int) -> None:
    model = create_model(name, in_dim=6, num_classes=2).eval()
    output = answer(model, torch.randn(instances, 6))
    attention = output.extras["attention"][:, 1].detach()
    [(logits, labels)] = iter_terms(model, output, torch.tensor(1))
    k = max(1, min(8, instances // 2))
    order = attention.sort(descending=True).indices
    weakest = order.flip(0)[: min(k, instances - k)]
    rows = torch.cat((order[:k], weakest))
    assert rows.unique().numel() == rows.numel()
    assert labels.tolist() == [1] * k + [0] * len(weakest)
    wanted = model.instance_head(output.extras["instances"][rows])[:, 2:]
    torch.testing.assert_close(logits, wanted)


@both
def test_a_single_output_is_the_positive_class(name: str) -> None:
    def labels_of(label: int, *, subtyping: bool) -> list[list[int]]:
        model = create_model(name, in_dim=6, num_classes=1, k_sample=2, subtyping=subtyping)
        output = answer(model, torch.randn(9, 6))
        return [labels.tolist() for _, labels in iter_terms(model, output, torch.tensor(label))]

    assert labels_of(1, subtyping=False) == labels_of(1, subtyping=True) == [[1, 1, 0, 0]]
    assert labels_of(0, subtyping=False) == []
    assert labels_of(0, subtyping=True) == [[0, 0]]


@both
@pytest.mark.parametrize("instances", [1, 2, 20_000])
def test_bags_of_any_size_can_be_learned_from(name: str, instances: int) -> None:
    for num_classes, subtyping in ((1, False), (2, False), (3, True)):
        options = {"num_classes": num_classes, "subtyping": subtyping, "hidden": 16}
        model = create_model(name, in_dim=6, attention_dim=8, **options)
        output = answer(model, torch.randn(instances, 6))
        model.losses(output, torch.tensor(0))["all"].backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)


@both
def test_attention_drops_a_quarter_whatever_the_dropout_unless_none(name: str) -> None:
    for dropout, wanted in ((0.1, 0.25), (0.5, 0.25), (0.0, 0.0)):
        model = create_model(name, in_dim=6, num_classes=2, dropout=dropout)
        assert model.attention.dropout.p == wanted
        assert model.project[2].p == dropout


def test_scores_are_the_attention_of_the_predicted_class() -> None:
    model = create_model("clam_mb", in_dim=6, num_classes=3).eval()
    output = answer(model, torch.randn(20, 6))
    assert output.scores.equal(output.class_scores[:, output.logits.argmax()])


def test_wrong_options_and_the_other_clams_checkpoints_are_refused(golden) -> None:
    for options in ({"instance_loss": "hinge"}, {"gate": 1}, {"k_sample": 0}, {"bag_weight": 2}):
        with pytest.raises(OptionError):
            create_model("clam_sb", in_dim=4, num_classes=2, **options)
    with pytest.raises(ModelError, match=r"attention_net\.3\.attention_c\.weight is \(2"):
        load_reference("clam_sb", official(golden("clam_mb")))
