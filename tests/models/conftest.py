"""Comparing a model's gradients with the four numbers the golden files keep of each."""

from __future__ import annotations

from collections.abc import Callable

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
    ``reference`` puts that number is where our gradient of it stands.
    """
    sizes = {name: int(array.size) for name, array in state.items()}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    numbers = {
        name: torch.arange(starts[name], starts[name] + sizes[name]).reshape(array.shape)
        for name, array in state.items()
    }
    found = torch.zeros(sum(sizes.values()), dtype=torch.float64)
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
            difference = np.abs(fingerprint(ours[name]) - numbers).max()
            assert difference <= allowed, f"{loss_name}, {name}: {difference} > {allowed}"
        return len(wanted)

    return check
