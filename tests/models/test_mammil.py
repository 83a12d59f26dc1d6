"""MamMIL against the official implementation, and its parts against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models.mammil import GENConv, GraphMamba, Mamba2Scan

SMALL = {"in_dim": 6, "num_classes": 2, "dim": 8, "state": 4, "head_dim": 4}


def bag(instances: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(2 * instances)))
    places = random.choice(side * side, instances, replace=False)
    coords = torch.from_numpy(np.stack(np.divmod(places, side), axis=1)).double()
    return torch.from_numpy(random.normal(size=(instances, 6))), coords


def stored_plan(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The graph and orders a golden keeps."""
    centres, neighbours = file["edge_index"]
    assert (np.diff(centres) >= 0).all()
    walks = ("B/dfs_preorder", "B/dfs_postorder", "B/bfs_levelorder")
    orders = np.stack([file[walk] for walk in walks]).astype(np.int64)
    return {"neighbours": neighbours.reshape(-1, 8).T.astype(np.int64), "orders": orders}


def test_graph_and_orders_are_the_official_ones(golden, official) -> None:
    file, stored = golden("mammil"), stored_plan(golden("mammil"))
    model = load_reference("mammil", official("mammil").state)
    plan = model.plan(file["coords"] / 512, file["B/x"].astype(np.float64))
    np.testing.assert_array_equal(plan["orders"], stored["orders"])
    for ours, theirs in zip(plan["neighbours"].T, stored["neighbours"].T, strict=True):
        assert set(ours) == set(theirs)


@pytest.mark.parametrize("planned_by", ["them", "us"])
def test_answers_and_gradients_are_the_official_ones(
    planned_by: str, golden, official, assert_gradient_norms
) -> None:
    file, wanted = golden("mammil"), official("mammil")
    model = load_reference("mammil", wanted.state).double()
    parts = {"mixer0": model.mixer, "genconv": model.graph.convolution, "gcn": model.graph}
    parts |= {"final_norm": model.norm, "attn_raw": model.attention}
    seen = {}
    for key, part in parts.items():
        part.register_forward_hook(lambda *a, key=key: seen.update({key: a[2]}))
    plan = stored_plan(file) if planned_by == "them" else None
    output = model(wanted.features, torch.from_numpy(file["coords"] / 512), plan)
    loss = F.cross_entropy(output.logits, torch.tensor(1))
    seen |= {"logits": output.logits, "Y_prob": model.probabilities(output), "loss": loss}
    for key, numbers in wanted.out.items():
        whole = key in ("logits", "Y_prob", "loss", "attn_raw")
        found = seen[key] if whole else seen[key][[0, 1, 150, -1]]
        torch.testing.assert_close(found.flatten(), numbers.flatten(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(output.scores, wanted.out["attn_raw"].flatten().softmax(0))
    assert_gradient_norms(model, wanted, loss)
    dead = {key for key, norm in wanted.norms.items() if np.isnan(norm)}
    assert dead == {key for key in wanted.norms if key.startswith("layers.1.")}


def test_a_scan_is_its_definition_step_by_step() -> None:
    torch.manual_seed(0)
    scan = Mamba2Scan(heads=3, head_dim=2, state=4).double()
    sequence = torch.randn(150, 6 + 8 + 3, dtype=torch.float64)
    weight, bias = scan.convolution.weight[:, 0], scan.convolution.bias
    S = torch.zeros(3, 2, 4, dtype=torch.float64)
    rows = []
    for t in range(150):
        last = [sequence[t - lag, :14] * (t >= lag) for lag in (3, 2, 1, 0)]
        read = F.silu(sum(w * x for w, x in zip(weight.T, last, strict=True)) + bias)
        x, B, C = read[:6].reshape(3, 2), read[6:10], read[10:]
        dt = F.softplus(sequence[t, 14:] + scan.dt_bias)
        for head in range(3):
            kept = torch.exp(-dt[head] * scan.A_log[head].exp()) * S[head]
            S[head] = (kept + dt[head] * torch.outer(x[head], B)).detach()
        rows.append((S @ C + scan.D[:, None] * x).flatten())
    torch.testing.assert_close(scan(sequence), torch.stack(rows), rtol=1e-9, atol=1e-10)


def test_the_mixer_is_the_mean_of_gated_scans_in_their_orders() -> None:
    torch.manual_seed(0)
    mixer = GraphMamba(4, state=3, head_dim=2).double()
    nn.init.normal_(mixer.scale)
    h = torch.randn(20, 4, dtype=torch.float64)
    orders = torch.stack([torch.randperm(20) for _ in range(8)])
    z, sequence = (h @ mixer.in_proj.weight.T).split([8, 8 + 6 + 4], dim=1)
    mean = torch.zeros_like(z)
    for scan, order in zip(mixer.scans, orders, strict=True):
        for row, y in zip(order, scan(sequence[order]), strict=True):
            gated = y * F.silu(z[row])
            mean[row] += gated / torch.sqrt((gated**2).mean() + 1e-5) * mixer.scale / 8
    torch.testing.assert_close(mixer(h, orders), mean @ mixer.out_proj.weight.T)


def test_scans_go_both_ways_in_row_order_and_in_three_walks() -> None:
    model = create_model("mammil", **SMALL)
    features, coords = bag(30)
    seen = []
    model.mixer.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    output = model(features.float(), coords)
    walks = model.plan(coords.numpy(), features.float().numpy())["orders"].tolist()
    rows = list(range(30))
    wanted = [list(way) for walk in [rows, *walks] for way in (walk, reversed(walk))]
    assert seen[0].tolist() == wanted
    assert output.logits.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("temperature", [1.0, -0.5])
def test_messages_are_weighed_channel_by_channel(scale: float, temperature: float) -> None:
    torch.manual_seed(0)
    convolution = GENConv(5).double()
    nn.init.constant_(convolution.temperature, temperature)
    m = scale * torch.randn(12, 5, dtype=torch.float64)
    neighbours = torch.stack([(torch.arange(12) + shift) % 11 for shift in (1, 2, 5)])
    wanted = torch.zeros_like(m)
    for i in range(11):  # nobody sends to the last
        senders = [j for j in range(12) if i in neighbours[:, j]]
        messages = m[senders].relu() + 1e-7
        wanted[i] = ((temperature * messages).softmax(0) * messages).sum(0)
    torch.testing.assert_close(convolution(m, neighbours), convolution.mlp(wanted + m))


def test_parts_computed_again_have_the_gradients_of_parts_remembered(monkeypatch) -> None:
    torch.manual_seed(0)
    model = create_model("mammil", **SMALL).double().eval()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(*bag(50)).logits[0].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        monkeypatch.setattr(
            "sacmil.models.mammil.recompute_in_backward", lambda f, *given: f(*given)
        )
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


def test_a_plan_without_features_walks_to_the_nearest_first() -> None:
    model = create_model("mammil", **SMALL)
    coords = np.array([[0.0, 0], [3, 0], [1, 0], [7, 0]])
    plan = model.plan(coords)
    assert plan["orders"].tolist() == [[0, 2, 1, 3], [3, 1, 2, 0], [0, 2, 1, 3]]
    assert plan["neighbours"][:3].tolist() == [[2, 2, 0, 1], [1, 0, 1, 2], [3, 3, 3, 0]]
    assert (plan["neighbours"][3:] == len(coords)).all(), "there is nobody else to send to"


@pytest.mark.parametrize("instances", [1, 2, 8, 9, 10, 300])
def test_bags_of_any_size_can_be_learned_from(instances: int) -> None:
    torch.manual_seed(0)
    features, coords = bag(instances)
    model = create_model("mammil", **SMALL)
    plan = model.plan(coords.numpy(), features.numpy())
    assert plan["neighbours"].shape == (8, instances)
    assert (plan["neighbours"] < instances).sum() == min(8, instances - 1) * instances
    assert plan["orders"].shape == (3, instances)
    model.losses(model(features, coords, plan), torch.tensor(0))["all"].backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_it_starts_as_the_official_one() -> None:
    torch.manual_seed(0)
    model = create_model("mammil", in_dim=1024, num_classes=2)
    assert sum(p.numel() for p in model.parameters()) == 5_175_812 - 1_765_760
    steps = torch.stack([F.softplus(scan.dt_bias) for scan in model.mixer.scans])
    assert 0.999e-3 < steps.min() < 0.004
    assert 0.03 < steps.max() < 0.1001
    decays = torch.stack([scan.A_log.exp() for scan in model.mixer.scans])
    assert 1 <= decays.min() < 3
    assert 14 < decays.max() <= 16
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (model.project[0].bias == 0).all()
    bound = 1 / np.sqrt(2 * 1024)
    assert model.mixer.out_proj.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)


def test_wrong_options_and_foreign_checkpoints_are_refused() -> None:
    for name in ("dim", "state", "head_dim", "neighbours"):
        with pytest.raises(OptionError, match=f"{name}=0; expected a whole number"):
            create_model("mammil", in_dim=4, num_classes=2, **{name: 0})
    with pytest.raises(OptionError, match="head_dim=48 does not divide 2 dim=64"):
        create_model("mammil", in_dim=4, num_classes=2, dim=32, head_dim=48)
    with pytest.raises(OptionError, match="dropout"):
        create_model("mammil", in_dim=4, num_classes=2, dropout=-0.1)
    with pytest.raises(ModelError, match=r"ft_head\.0\.weight is missing"):
        load_reference("mammil", {"head.weight": np.zeros((2, 4), np.float32)})
