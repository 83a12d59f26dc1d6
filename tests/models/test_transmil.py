"""TransMIL against the official implementation, and against its equations written out densely."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models import Recipe
from sacmil.models._recipe import Lookahead
from sacmil.models.transmil import TransMIL

GOLDENS = pytest.mark.parametrize(
    ("name", "legacy_slice"), [("transmil", False), ("transmil_ny009", True)]
)


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


def small(num_classes: int = 2, **options: object) -> TransMIL:
    torch.manual_seed(3)
    sizes = {"dim": 16, "heads": 2, "landmarks": 6} | options
    return create_model("transmil", in_dim=5, num_classes=num_classes, **sizes).double().eval()


def rows_seen(model, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tokens 0, 1 and the last at the places the goldens keep, and the answer."""
    seen = {}

    def first(module, given, made) -> None:
        seen["after_layer1_tok0_1_last"] = made[0][[0, 1, -1]]

    def second(module, given, made) -> None:
        seen["after_ppeg_tok0_1_last"] = given[0][[0, 1, -1]]
        seen["after_layer2_tok0_1_last"] = made[0][[0, 1, -1]]

    model.layer1.register_forward_hook(first)
    model.layer2.register_forward_hook(second)
    output = answer(model, x)
    return seen | {"logits": output.logits, "Y_prob": model.probabilities(output)}


@GOLDENS
def test_answers_are_the_official_ones(name, legacy_slice, official) -> None:
    golden = official(name)
    model = load_reference("transmil", golden.state, legacy_slice=legacy_slice).double()
    ours = rows_seen(model, golden.features)
    assert set(ours) == set(golden.out)
    for key, wanted in golden.out.items():
        found = ours[key].detach().reshape(wanted.shape)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12, msg=key)


@GOLDENS
def test_gradients_are_the_official_ones(
    name, legacy_slice, official, assert_gradient_norms
) -> None:
    golden = official(name)
    model = load_reference("transmil", golden.state, legacy_slice=legacy_slice).double()
    output = answer(model, golden.features)
    assert_gradient_norms(model, golden, model.losses(output, torch.tensor(1))["all"])
    # The old slice puts a padding row in the class token's place, further than the convolution
    # over values reaches: it learns nothing there.
    unused = (model.layer2.attention.residual.weight.grad == 0).all().item()
    assert unused == legacy_slice


def test_the_slice_is_the_only_difference_between_the_goldens(official) -> None:
    golden = official("transmil")
    fixed, legacy = (
        answer(load_reference("transmil", golden.state, legacy_slice=s), golden.features)
        for s in (False, True)
    )
    assert not torch.allclose(fixed.logits, legacy.logits, atol=1e-3)


# The equations once more, in numpy, with the whole attention matrix.


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, sd: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * sd[f"{name}.weight"] + sd[f"{name}.bias"]


def means_of_groups(x: np.ndarray, groups: int) -> np.ndarray:
    size = len(x) // groups
    return np.stack([x[g * size : (g + 1) * size].mean(0) for g in range(groups)])


def nearly_inverse(a: list[np.ndarray]) -> list[np.ndarray]:
    rows = max(np.abs(head).sum(1).max() for head in a)
    columns = max(np.abs(head).sum(0).max() for head in a)
    out = []
    for head in a:
        z, eye = head.T / (rows * columns), np.eye(len(head))
        for _ in range(6):
            y = head @ z
            z = z @ (13 * eye - y @ (15 * eye - y @ (7 * eye - y))) / 4
        out.append(z)
    return out


def attention(
    x: np.ndarray, sd: dict[str, np.ndarray], name: str, heads: int, marks: int
) -> tuple[np.ndarray, np.ndarray]:
    """The output and the mean over heads of the (N, N) matrix between tokens."""
    padding = -len(x) % marks
    x = np.concatenate([np.zeros((padding, x.shape[1])), x])
    q, k, v = np.split(x @ sd[f"{name}.qkv.weight"].T, 3, axis=1)
    q, k, v = (np.split(part, heads, axis=1) for part in (q / math.sqrt(8), k, v))
    q_marks, k_marks = ([means_of_groups(h, marks) for h in part] for part in (q, k))
    inverse = nearly_inverse([softmax(a @ b.T) for a, b in zip(q_marks, k_marks, strict=True)])
    dense, mixed = [], []
    for h in range(heads):
        left, right = softmax(q[h] @ k_marks[h].T), softmax(q_marks[h] @ k[h].T)
        dense.append(left @ inverse[h] @ right)
        taps = sd[f"{name}.residual.weight"][h, 0, :, 0]
        wide = np.pad(v[h], ((16, 16), (0, 0)))
        along = [sum(taps[t] * wide[i + t] for t in range(33)) for i in range(len(x))]
        mixed.append(dense[-1] @ v[h] + np.stack(along))
    y = np.concatenate(mixed, axis=1) @ sd[f"{name}.out.weight"].T + sd[f"{name}.out.bias"]
    return y[padding:], np.mean(dense, axis=0)[padding:, padding:]


def convolved(h: np.ndarray, sd: dict[str, np.ndarray]) -> np.ndarray:
    side = math.isqrt(len(h))
    image = h.reshape(side, side, -1)
    out = image.copy()
    for place, size in enumerate((7, 5, 3)):
        kernel, reach = sd[f"position.weights.{place}"][:, 0], size // 2
        wide = np.pad(image, ((reach, reach), (reach, reach), (0, 0)))
        for r in range(side):
            for c in range(side):
                seen = wide[r : r + size, c : c + size]
                out[r, c] += np.einsum("rcd,drc->d", seen, kernel)
        out += sd[f"position.biases.{place}"]
    return out.reshape(len(h), -1)


def written_out(model, x: np.ndarray, heads: int, marks: int) -> tuple[np.ndarray, np.ndarray]:
    sd = {key: value.numpy() for key, value in model.state_dict().items()}
    h = np.maximum(x @ sd["project.0.weight"].T + sd["project.0.bias"], 0)
    n, side = len(h), math.ceil(math.sqrt(len(h)))
    h = np.concatenate([sd["class_token"], h, h[: side * side - n]])
    h = h + attention(layer_norm(h, sd, "layer1.norm"), sd, "layer1.attention", heads, marks)[0]
    h = np.concatenate([h[:1], convolved(h[1:], sd)])
    normed = layer_norm(h, sd, "layer2.norm")
    more, dense = attention(normed, sd, "layer2.attention", heads, marks)
    logits = sd["head.weight"] @ layer_norm((h + more)[0], sd, "norm") + sd["head.bias"]
    scores = dense[0, 1 : n + 1].copy()
    for repeated in range(side * side - n):
        scores[repeated] += dense[0, 1 + n + repeated]
    return logits, scores


@pytest.mark.parametrize("instances", [1, 2, 3, 5, 16, 30, 37])
def test_answers_and_scores_are_the_equations_with_the_whole_matrix(instances: int) -> None:
    model = small()
    with torch.no_grad():
        for parameter in model.parameters():  # far from their start, where attention is even
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    x = np.random.default_rng(instances).standard_normal((instances, 5))
    logits, scores = written_out(model, x, heads=2, marks=6)
    output = answer(model, torch.from_numpy(x))
    np.testing.assert_allclose(output.logits.detach(), logits, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(output.scores.detach(), scores, rtol=1e-7, atol=1e-10)


def test_scores_do_not_depend_on_the_slice_of_the_last_layer() -> None:
    x = torch.randn(30, 5, dtype=torch.float64)
    model = small()
    fixed = answer(model, x)
    model.layer2.attention.legacy_slice = True
    legacy = answer(model, x)
    assert legacy.scores.equal(fixed.scores)
    assert not torch.allclose(legacy.logits, fixed.logits)


def test_landmarks_are_half_the_width_unless_given() -> None:
    assert small(landmarks=None).layer2.attention.landmarks == 8
    assert small(landmarks=3).layer1.attention.landmarks == 3
    assert small(dim=1, heads=1, landmarks=None).layer1.attention.landmarks == 1


def test_there_are_as_many_parameters_as_officially() -> None:
    with torch.device("meta"):
        model = create_model("transmil", in_dim=1024, num_classes=2)
    assert sum(p.numel() for p in model.parameters()) == 2_672_146


def test_kernels_start_as_torch_draws_them_and_the_class_token_normal() -> None:
    torch.manual_seed(0)
    model = create_model("transmil", in_dim=4, num_classes=2)
    for weight, bias, size in zip(
        model.position.weights, model.position.biases, (7, 5, 3), strict=True
    ):
        for drawn in (weight, bias):  # a uniform draw within b has a deviation of b / sqrt(3)
            assert drawn.abs().max().item() <= 1 / size
            assert drawn.std().item() == pytest.approx(1 / size / math.sqrt(3), rel=0.1)
    assert model.class_token.std().item() == pytest.approx(1, rel=0.15)


def test_only_training_drops() -> None:
    x = torch.randn(30, 5, dtype=torch.float64)
    model = small(dropout=0.5)
    calm = answer(model, x).logits
    assert not torch.allclose(answer(model.train(), x).logits, calm)
    assert answer(small(dropout=0.0).train(), x).logits.equal(calm)


@pytest.mark.parametrize("instances", [1, 2, 3, 50])
def test_bags_of_any_size_can_be_learned_from(instances: int) -> None:
    for num_classes in (1, 2, 3):
        model = small(num_classes).train()
        output = answer(model, torch.randn(instances, 5))
        model.losses(output, torch.tensor(0))["all"].backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_the_official_recipe_is_a_lookahead_over_radam() -> None:
    assert TransMIL.recipes["official"] == Recipe(
        optimizer="radam",
        lookahead=Lookahead(steps=6, alpha=0.5),
        lr=2e-4,
        weight_decay=1e-5,
        exempt_vectors=True,
        epochs=200,
        patience=10,
        monitor="val_loss",
        accumulate=2,
    )


def test_wrong_options_and_foreign_checkpoints_are_refused(official) -> None:
    with pytest.raises(OptionError, match=r"heads=3 does not divide dim=16"):
        small(heads=3)
    for options in ({"dim": 0}, {"heads": 0}, {"landmarks": 0}, {"dropout": 2}):
        with pytest.raises(OptionError, match=next(iter(options))):
            small(**options)
    with pytest.raises(OptionError, match="expected True or False"):
        small(legacy_slice=1)
    state = official("transmil").state
    with pytest.raises(ModelError, match="cls_token is missing"):
        load_reference("transmil", {k: v for k, v in state.items() if k != "cls_token"})
    with pytest.raises(ModelError, match=r"proj\.weight is not known"):
        load_reference("transmil", state | {"proj.weight": np.zeros((2, 2))})
