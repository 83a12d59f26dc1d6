"""MambaMIL against the official implementation, and its mixer against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models.mambamil import MambaMixer

GOLDENS = pytest.mark.parametrize(
    ("file_name", "options"),
    [
        ("mambamil_srmamba_rate7", {"kind": "srmamba", "rate": 7}),
        ("mambamil_bimamba", {"kind": "bimamba"}),
        ("mambamil_mamba", {}),
    ],
)


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


@GOLDENS
def test_answers_and_gradients_are_the_official_ones(
    file_name, options, official, assert_gradient_norms
) -> None:
    golden = official(file_name)
    model = load_reference("mambamil", golden.state, **options).double()
    seen = {}
    parts = {"mixer0": model.layers[0].mixer, "final_norm": model.norm}
    for key, part in (parts | {"attn_raw": model.attention}).items():
        part.register_forward_hook(lambda *a, key=key: seen.update({key: a[2]}))
    output = answer(model, golden.features)
    seen |= {"logits": output.logits, "Y_prob": model.probabilities(output)}
    for key, wanted in golden.out.items():
        found = seen[key] if key in ("logits", "Y_prob", "attn_raw") else seen[key][[0, 1, 150, -1]]
        torch.testing.assert_close(found.flatten(), wanted.flatten(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(output.scores, golden.out["attn_raw"].flatten().softmax(0))
    assert_gradient_norms(model, golden, F.cross_entropy(output.logits, torch.tensor(1)))


def direction(core, xz: torch.Tensor) -> torch.Tensor:
    """A direction of the mixer, step by step."""
    weight, bias = core.convolution.weight[:, 0], core.convolution.bias
    rank, state, _ = core.sizes
    s = torch.zeros_like(core.A_log)
    rows = []
    for t in range(len(xz)):
        x = torch.stack([xz[t - lag] if t >= lag else 0 * xz[0] for lag in (3, 2, 1, 0)])
        x, z = x[:, : len(bias)], xz[t, len(bias) :]
        u = F.silu((weight.T * x).sum(0) + bias)
        selected = core.select.weight @ u
        dt = F.softplus(core.step.weight @ selected[:rank] + core.step.bias)
        entered = (dt * u)[:, None] * selected[None, rank : rank + state]
        s = torch.exp(-dt[:, None] * core.A_log.exp()) * s + entered
        rows.append((s @ selected[rank + state :] + core.D * u) * F.silu(z))
    return torch.stack(rows)


@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 50])
@pytest.mark.parametrize("kind", ["srmamba", "bimamba", "mamba"])
def test_a_mixer_is_its_definition_row_by_row(kind: str, length: int) -> None:
    torch.manual_seed(0)
    mixer = MambaMixer(5, kind, rate=7, state=3, expand=2).double()
    h = torch.randn(length, 5, dtype=torch.float64)
    xz = h @ mixer.in_proj.weight.T
    y = direction(mixer.straight, xz)
    if kind == "bimamba":
        y = y + direction(mixer.turned, xz.flip(0)).flip(0)
    if kind == "srmamba":
        rounds = math.ceil(length / 7)
        padded = torch.cat((xz, xz.new_zeros(rounds * 7 - length, xz.shape[1])))
        reordered = [k * 7 + w for w in range(7) for k in range(rounds)]
        turned = torch.zeros(len(padded), 10, dtype=torch.float64)
        turned[reordered] = direction(mixer.turned, padded[reordered])
        y = y + turned[:length]
    torch.testing.assert_close(mixer(h), y @ mixer.out_proj.weight.T, rtol=1e-9, atol=1e-10)


def test_a_bag_is_read_forwards_only_by_plain_mamba() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 6, dtype=torch.float64)
    changed = x.clone()
    changed[25] += 1
    for kind, same_before in (("mamba", True), ("bimamba", False), ("srmamba", False)):
        model = create_model("mambamil", in_dim=6, num_classes=2, dim=8, kind=kind).double()
        h, other = (model.layers(model.project(features)) for features in (x, changed))
        assert torch.allclose(h[:25], other[:25], atol=1e-12) == same_before
        assert not torch.allclose(h[25:], other[25:], atol=1e-6)


def test_it_starts_as_the_official_one() -> None:
    model = create_model("mambamil", in_dim=1024, num_classes=2)
    core = model.layers[1].mixer.turned
    assert sum(p.numel() for p in model.parameters()) == 4_227_843
    torch.testing.assert_close(core.A_log.exp()[77], torch.arange(1.0, 17))
    assert (core.D == 1).all()
    assert (core.step.bias == 0).all()
    assert core.step.weight.std().item() == pytest.approx(math.sqrt(2 / (32 + 1024)), rel=0.02)
    assert core.convolution.weight.abs().max().item() == pytest.approx(0.5, abs=0.01)
    plain = create_model("mambamil", in_dim=1024, num_classes=2, kind="mamba")
    assert sum(p.numel() for p in plain.parameters()) == 3_984_131


def test_without_a_rate_it_is_that_of_the_released_scripts() -> None:
    torch.manual_seed(0)
    model = create_model("mambamil", in_dim=4, num_classes=2, dim=8).eval()
    other = create_model("mambamil", in_dim=4, num_classes=2, dim=8, rate=10).eval()
    other.load_state_dict(model.state_dict())
    assert model.options["rate"] == 5
    x = torch.randn(30, 4)
    assert not torch.allclose(answer(model, x).logits, answer(other, x).logits, atol=1e-6)


def test_dropout_acts_in_training_only() -> None:
    model = create_model("mambamil", in_dim=4, num_classes=2, dim=8, dropout=0.5)
    x = torch.randn(30, 4)
    model.train()
    assert not answer(model, x).logits.equal(answer(model, x).logits)
    model.eval()
    assert answer(model, x).logits.equal(answer(model, x).logits)


@pytest.mark.parametrize("kind", ["srmamba", "bimamba", "mamba"])
@pytest.mark.parametrize("instances", [1, 2, 4, 5, 6, 400])
def test_bags_of_any_size_can_be_learned_from(kind: str, instances: int) -> None:
    torch.manual_seed(0)
    model = create_model("mambamil", in_dim=4, num_classes=2, dim=16, kind=kind, depth=1)
    output = answer(model, torch.randn(instances, 4))
    model.losses(output, torch.tensor(0))["all"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_mixed_precision_stays_near_the_answer() -> None:
    torch.manual_seed(0)
    model = create_model("mambamil", in_dim=16, num_classes=2, dim=32).eval()
    x = torch.randn(300, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = answer(model, x)
    torch.testing.assert_close(half.logits.float(), answer(model, x).logits, atol=0.05, rtol=0.05)


def test_wrong_options_and_foreign_checkpoints_are_refused() -> None:
    for name in ("dim", "depth", "rate", "state", "expand"):
        with pytest.raises(OptionError, match=f"{name}=0; expected a whole number"):
            create_model("mambamil", in_dim=4, num_classes=2, **{name: 0})
    with pytest.raises(OptionError, match="did you mean 'srmamba'"):
        create_model("mambamil", in_dim=4, num_classes=2, kind="sr_mamba")
    with pytest.raises(OptionError, match="dropout"):
        create_model("mambamil", in_dim=4, num_classes=2, dropout=1.5)
    with pytest.raises(ModelError, match=r"_fc1\.0\.weight is missing"):
        load_reference("mambamil", {"classifier.weight": np.zeros((2, 4), np.float32)})
