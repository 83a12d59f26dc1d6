"""Norma against the released code, and against its equations in a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models import Recipe, norma
from sacmil.models._recipe import Lookahead
from sacmil.models.norma import PEG1D, Norma

AS_GOLDEN = {"segment": 100, "memory": 3, "passes": 2}


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


def small(num_classes: int = 2, **options: object) -> Norma:
    """A small model far from its start, where attention is nearly even."""
    torch.manual_seed(3)
    sizes = {"dim": 16, "heads": 2, "segment": 10, "memory": 2} | options
    model = create_model("norma", in_dim=5, num_classes=num_classes, **sizes).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def bag(instances: int) -> torch.Tensor:
    random = np.random.default_rng(instances)
    return torch.from_numpy(random.standard_normal((instances, 5)))


def test_answers_are_the_official_ones(official) -> None:
    golden = official("norma")
    model = load_reference("norma", golden.state, **AS_GOLDEN).double()
    output = answer(model, golden.features)
    segments, memory = output.extras["segments"], output.extras["memory"]
    last = model.norm(memory[-1])  # what the two heads that nothing trains would have seen
    dead = {
        name: last @ torch.from_numpy(golden.state[f"{name}.weight"]).double().T
        + torch.from_numpy(golden.state[f"{name}.bias"]).double()
        for name in ("proj", "isbg")
    }
    lengths = []
    for visits in range(1, 7):
        model.passes = 1 if visits <= 3 else 2
        read = answer(model, golden.features[: 100 * min(visits, 3)])
        lengths.append(len(read.extras["memory"]))
    ours = {
        "seg_logits": segments,
        "logits": segments[-1],
        "mean_prob": model.probabilities(output),
        "mems_final": memory,
        "mem_len": torch.tensor(lengths),
        "feat_last": dead["proj"],
        "logits_bg_last": dead["isbg"],
    }
    assert set(ours) == set(golden.out)
    for key, wanted in golden.out.items():
        found = ours[key].detach().reshape(wanted.shape).to(wanted.dtype)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12, msg=key)


def test_gradients_of_the_last_segment_are_the_official_ones(
    official, assert_gradient_norms
) -> None:
    golden = official("norma")
    model = load_reference("norma", golden.state, **AS_GOLDEN).double()
    segments = answer(model, golden.features).extras["segments"]
    loss = torch.nn.functional.cross_entropy(segments[-1], torch.tensor(1))
    assert_gradient_norms(model, golden, loss)
    without = {name for name, norm in golden.norms.items() if math.isnan(norm)}
    assert without == {"proj.weight", "proj.bias", "isbg.weight", "isbg.bias"}


def test_positions_are_the_official_ones(official) -> None:
    golden = official("norma_peg1d")
    peg = PEG1D(16).double()
    peg.convolution.load_state_dict(
        {
            name.removeprefix("peg.proj1."): torch.from_numpy(array)
            for name, array in golden.state.items()
        }
    )
    y = peg(golden.features)
    torch.testing.assert_close(y, golden.out["y"].reshape(y.shape), rtol=1e-6, atol=1e-12)
    logits = y.mean(0)[:2]
    torch.testing.assert_close(logits, golden.out["logits"].reshape(2), rtol=1e-6, atol=1e-12)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(1))
    assert loss.item() == pytest.approx(golden.loss, rel=1e-6)
    loss.backward()
    for name, parameter in peg.convolution.named_parameters():
        wanted = golden.norms[f"peg.proj1.{name}"]
        assert parameter.grad.norm().item() == pytest.approx(wanted, rel=1e-6)


# The equations once more, in numpy, one segment and one head after the other.


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, sd: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * sd[f"{name}.weight"] + sd[f"{name}.bias"]


def layer(
    h: np.ndarray, sd: dict[str, np.ndarray], name: str, heads: int
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens, and the mean over heads of the matrix between them."""
    x = layer_norm(layer_norm(h, sd, f"{name}.norm"), sd, f"{name}.norm_again")
    q, k, v = np.split(x @ sd[f"{name}.qkv.weight"].T, 3, axis=1)
    mixed, weights = [], []
    for q_h, k_h, v_h in zip(*(np.split(a, heads, axis=1) for a in (q, k, v)), strict=True):
        weights.append(softmax(q_h @ k_h.T / math.sqrt(q_h.shape[1])))
        mixed.append(weights[-1] @ v_h)
    y = np.concatenate(mixed, axis=1) @ sd[f"{name}.out.weight"].T + sd[f"{name}.out.bias"]
    return h + y, np.mean(weights, axis=0)


def in_windows(x: np.ndarray, taps: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Neighbours count only inside the same 32 tokens."""
    out = np.zeros_like(x)
    for i in range(len(x)):
        out[i] = bias
        for t, j in enumerate((i - 1, i, i + 1)):
            if 0 <= j < len(x) and j // 32 == i // 32:
                out[i] += taps[:, t] * x[j]
    return out


def positioned(x: np.ndarray, sd: dict[str, np.ndarray]) -> np.ndarray:
    taps = sd["position.convolution.weight"][:, 0]
    bias = sd["position.convolution.bias"]
    shifted = in_windows(np.roll(x, 16, axis=0), taps, bias)
    return x + in_windows(x, taps, bias) + np.roll(shifted, -16, axis=0)


def written_out(model, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of each visit, scores and memory of a model made by ``small``."""
    sd = {key: value.numpy() for key, value in model.state_dict().items()}
    logits, sums, memory = [], np.zeros(len(x)), np.zeros((0, 16))
    for _ in range(model.passes):
        for start in range(0, len(x), model.segment):
            part = x[start : start + model.segment]
            h = np.maximum(part @ sd["project.0.weight"].T + sd["project.0.bias"], 0)
            h = np.concatenate([h, memory])
            side = math.ceil(math.sqrt(len(h)))
            stands = [*range(len(h)), *range(side * side - len(h))]
            h = np.concatenate([sd["class_token"], h[stands]])
            h, _ = layer(h, sd, "layer1", heads=2)
            h = np.concatenate([h[:1], positioned(h[1:], sd)])
            h, weights = layer(positioned(h, sd), sd, "layer2", heads=2)
            logits.append(sd["head.weight"] @ layer_norm(h[0], sd, "norm") + sd["head.bias"])
            memory = np.concatenate([memory, h[:1]])[-model.memory :]
            for cell, row in enumerate(stands):
                if row < len(part):
                    sums[start + row] += weights[0, 1 + cell]
    return np.stack(logits), sums / model.passes, memory


@pytest.mark.parametrize(
    ("instances", "options"),
    [
        (1, {}),
        (2, {"passes": 1}),
        (7, {}),
        (21, {}),
        (30, {"passes": 3, "memory": 5}),
        (45, {"segment": 40, "memory": 1}),
        (70, {"segment": 70}),
        (4, {"segment": 1, "memory": 9}),
    ],
)
def test_answers_and_scores_are_the_equations_in_a_loop(instances: int, options: dict) -> None:
    model, x = small(**options), bag(instances)
    logits, scores, memory = written_out(model, x.numpy())
    output = answer(model, x)
    np.testing.assert_allclose(output.extras["segments"].detach(), logits, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(output.scores.detach(), scores, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(output.extras["memory"], memory, rtol=1e-9, atol=1e-12)
    mean = softmax(logits).mean(0)
    np.testing.assert_allclose(model.probabilities(output).detach(), mean, rtol=1e-9)


def test_a_single_output_is_the_mean_of_the_visits_too() -> None:
    model = small(num_classes=1)
    output = answer(model, bag(35))
    visits = output.extras["segments"].sigmoid()
    assert visits.std().item() > 0.01
    torch.testing.assert_close(model.probabilities(output), visits.mean(0))


@pytest.mark.parametrize("num_classes", [1, 2])
def test_visits_sure_of_themselves_leave_the_answer_finite(num_classes: int) -> None:
    model = small(num_classes)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([1000.0, -1000.0])[:num_classes])
    output = answer(model, bag(25))
    assert output.logits.isfinite().all()
    assert model.losses(output, torch.tensor(0))["all"].isfinite()
    assert model.probabilities(output)[0].item() == pytest.approx(1)


def test_the_loss_is_the_mean_of_the_losses_of_the_visits() -> None:
    for num_classes, target in ((1, 1), (2, 0), (3, 2)):
        model = small(num_classes)
        output = answer(model, bag(25))
        probabilities = [
            [1 - v.sigmoid()[0], v.sigmoid()[0]] if num_classes == 1 else v.softmax(0)
            for v in output.extras["segments"]
        ]
        wanted = -sum(p[target].log().item() for p in probabilities) / 6
        loss = model.losses(output, torch.tensor(target))["all"]
        assert loss.item() == pytest.approx(wanted)


def test_a_segment_is_answered_knowing_those_before_but_does_not_train_through_them() -> None:
    model, x = small(passes=1), bag(30).requires_grad_()
    last = answer(model, x).extras["segments"][-1]
    (gradient,) = torch.autograd.grad(last.sum(), x)
    assert (gradient[:20] == 0).all()
    assert (gradient[20:] != 0).any(1).all()
    changed = x.detach().clone()
    changed[:10] += 1
    assert not torch.allclose(answer(model, changed).extras["segments"][-1], last)


def test_memory_is_carried_from_pass_to_pass() -> None:
    model, x = small(passes=2), bag(30)
    segments = answer(model, x).extras["segments"]
    assert not torch.allclose(segments[:3], segments[3:])


def test_training_reads_in_random_order_but_scores_stand_in_the_bags_own() -> None:
    model, x = small(dropout=0.0), bag(35)
    torch.manual_seed(5)
    trained = answer(model.train(), x)
    torch.manual_seed(5)
    order = torch.randperm(35)
    read = answer(model.eval(), x[order])
    torch.testing.assert_close(trained.logits, read.logits)
    torch.testing.assert_close(trained.scores[order], read.scores)
    assert not torch.allclose(trained.logits, answer(model, x).logits)


def test_without_shuffle_and_dropout_training_reads_as_evaluation_does() -> None:
    model, x = small(dropout=0.0, shuffle=False), bag(35)
    torch.testing.assert_close(answer(model.train(), x).logits, answer(model.eval(), x).logits)


def test_only_training_drops() -> None:
    model, x = small(dropout=0.5, shuffle=False), bag(35)
    assert not torch.allclose(answer(model.train(), x).logits, answer(model.eval(), x).logits)


def test_reading_a_segment_again_in_the_backward_pass_changes_no_gradient(monkeypatch) -> None:
    def gradients() -> list[torch.Tensor]:
        model = small(dropout=0.3).train()
        torch.manual_seed(8)
        model.losses(answer(model, bag(35)), torch.tensor(1))["all"].backward()
        return [p.grad for p in model.parameters()]

    again = gradients()
    calls = []

    def kept(read, *tensors):
        calls.append(read)
        return read(*tensors)

    monkeypatch.setattr(norma, "recompute_in_backward", kept)
    for ours, wanted in zip(again, gradients(), strict=True):
        torch.testing.assert_close(ours, wanted)
    assert len(calls) == 8


def test_the_class_token_output_is_the_first_row_of_the_layer() -> None:
    layer2 = small().layer2
    h = torch.randn(20, 16, dtype=torch.float64)
    token, weights = layer2.forward_class_token(h)
    torch.testing.assert_close(token, layer2(h)[:1])
    assert weights.sum().item() == pytest.approx(1)


def test_there_are_as_many_parameters_as_officially_that_are_trained() -> None:
    with torch.device("meta"):
        model = create_model("norma", in_dim=1024, num_classes=2)
    dead = (512 * 128 + 128) + (512 * 2 + 2)
    assert sum(p.numel() for p in model.parameters()) + dead == 2_698_372


@pytest.mark.parametrize("instances", [1, 2, 3, 11, 50])
def test_bags_of_any_size_can_be_learned_from(instances: int) -> None:
    for num_classes in (1, 2, 3):
        model = small(num_classes).train()
        model.losses(answer(model, bag(instances)), torch.tensor(0))["all"].backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_the_official_recipe_is_a_lookahead_over_radam() -> None:
    assert Norma.recipes["official"] == Recipe(
        optimizer="radam",
        lookahead=Lookahead(steps=6, alpha=0.5),
        lr=2e-4,
        weight_decay=1e-5,
        exempt_vectors=True,
        epochs=50,
        patience=10,
        monitor="val_loss",
        accumulate=8,
    )


def test_wrong_options_and_foreign_checkpoints_are_refused(official) -> None:
    with pytest.raises(OptionError, match=r"heads=3 does not divide dim=16"):
        small(heads=3)
    for name in ("dim", "heads", "segment", "memory", "passes"):
        with pytest.raises(OptionError, match=f"{name}=0"):
            small(**{name: 0})
    with pytest.raises(OptionError, match="expected a number from 0 to 1"):
        small(dropout=1.5)
    with pytest.raises(OptionError, match="expected True or False"):
        small(shuffle=1)
    state = official("norma").state
    with pytest.raises(ModelError, match="cls_token is missing"):
        load_reference("norma", {k: v for k, v in state.items() if k != "cls_token"})
    with pytest.raises(ModelError, match=r"layer1\.attn\.norm\.weight is missing"):
        load_reference("norma", {k: v for k, v in state.items() if k != "layer1.attn.norm.weight"})
