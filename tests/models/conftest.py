"""What the golden files hold of a model, and comparing gradients with the figures they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch

from sacmil.models import MILModel

Arrays = dict[str, np.ndarray]


def fingerprint(gradient: torch.Tensor) -> np.ndarray:
    """Sum, L2 norm, L1 norm and sum of g_i cos(i) of a flattened gradient."""
    g = gradient.detach().double().flatten().numpy()
    return np.array(
        [g.sum(), np.sqrt((g * g).sum()), np.abs(g).sum(), g @ np.cos(np.arange(g.size))]
    )


def official_gradients(model: MILModel, state: Arrays) -> dict[str, torch.Tensor]:
    """The model's gradients under official names and shapes.

    Every number of the official checkpoint is replaced by its running number; where
    ``reference`` puts that number is where our gradient of it stands; NaN where there is none.
    """
    sizes = {name: int(array.size) for name, array in state.items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    numbers = {
        name: torch.arange(starts[name], starts[name] + sizes[name]).reshape(array.shape)
        for name, array in state.items()
    }
    found = torch.full((sum(sizes.values()),), torch.nan, dtype=torch.float64)
    places = type(model).reference(numbers).state
    for name, parameter in model.named_parameters():
        if name in places and parameter.grad is not None:
            found[places[name].flatten()] = parameter.grad.double().flatten()
    return {name: found[numbers[name]] for name in state}


@pytest.fixture
def assert_gradients() -> Callable[..., int]:
    """A function that compares gradients with those of a golden file, and counts the compared.

    ``assert_gradients(model, file, loss_name, loss)`` takes the model made by load_reference, the
    arrays of the golden file (``sd/<name>``, ``grad/<loss_name>/<name>``), and the loss of an
    evaluation-mode forward pass. Names need no translation: the model's own ``reference`` gives
    it, as long as it only renames, reshapes, splits or stacks. Parameters the file has no
    gradient of are skipped. ``state`` replaces the arrays under ``sd/``.
    """

    def check(
        model: MILModel,
        file: Arrays,
        loss_name: str,
        loss: torch.Tensor,
        *,
        state: Arrays | None = None,
        tolerance: float = 1e-5,
    ) -> int:
        if state is None:
            state = {key[3:]: array for key, array in file.items() if key.startswith("sd/")}
        model.zero_grad()
        loss.backward(retain_graph=True)
        ours = official_gradients(model, state)
        prefix = f"grad/{loss_name}/"
        wanted = {key.removeprefix(prefix): file[key] for key in file if key.startswith(prefix)}
        for name, numbers in wanted.items():
            # A bias before a softmax has a gradient of exactly zero: what is stored is rounding.
            size = np.abs(numbers[2])
            allowed = 1e-6 if size < 1e-6 else tolerance * (1e-4 + size)
            difference = np.abs(fingerprint(ours[name].nan_to_num()) - numbers).max()
            assert difference <= allowed, f"{loss_name}, {name}: {difference} > {allowed}"
        return len(wanted)

    return check


class Official(NamedTuple):
    """A golden of baselines-sequence: a run of the official model in float64."""

    features: torch.Tensor
    state: Arrays
    """Parameters under official names, for load_reference."""
    out: dict[str, torch.Tensor]
    loss: float
    """Cross-entropy of ``out["logits"]`` with label 1."""
    norms: dict[str, float]
    """L2 norm of each gradient under its official name; NaN where there is none."""


@pytest.fixture
def official(golden: Callable[[str], Arrays]) -> Callable[[str], Official]:
    """A golden of the sequence models by name."""

    def load(name: str) -> Official:
        file = golden(name)
        parts: dict[str, Arrays] = {"sd": {}, "out64": {}, "gradnorm64": {}}
        for key, array in file.items():
            _, _, rest = key.partition("B/")
            part, _, inner = rest.partition("/")
            if inner and part in parts:
                parts[part][inner] = array
        return Official(
            torch.from_numpy(file["B/x"]).double(),
            parts["sd"],
            {key: torch.from_numpy(np.asarray(array)) for key, array in parts["out64"].items()},
            float(file["B/loss64"]),
            {key: float(norm) for key, norm in parts["gradnorm64"].items()},
        )

    return load


@pytest.fixture
def assert_gradient_norms() -> Callable[..., None]:
    """A function that compares the norms of all gradients with those of a golden.

    ``assert_gradient_norms(model, official, loss)`` takes the model made by load_reference, in
    float64 and evaluation mode, and the loss of its forward pass.
    """

    def check(
        model: MILModel, golden: Official, loss: torch.Tensor, *, tolerance: float = 1e-6
    ) -> None:
        assert loss.item() == pytest.approx(golden.loss, rel=tolerance)
        model.zero_grad()
        loss.backward()
        ours = official_gradients(model, golden.state)
        for name, norm in golden.norms.items():
            # A bias before a softmax has a gradient of exactly zero: what is stored is rounding.
            expected = pytest.approx(norm, rel=tolerance, abs=1e-12, nan_ok=True)
            assert ours[name].norm().item() == expected, f"the gradient of {name}"
        assert golden.norms

    return check
