"""One optimisation step, the same for every model: it uses the model's hooks only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer, RAdam

from sacmil.models import MILModel, Output, Recipe, Sample
from sacmil.models._recipe import Lookahead
from sacmil.tasks import Task

_SLOW_WEIGHTS_PREFIX = "slow weights/"


class Bags(Protocol):
    """The bags of a step; they may be read anew whenever they are iterated over."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __iter__(self) -> Iterator[Sample]:
        """Yield each."""


class Trainer:
    """A model with its optimizers; ``step`` trains it on a few bags.

    Args:
        model: trained in place.
        recipe: how to train.
        task: what is predicted, with what it learned from the training set; None means classes,
            without smoothing and weights.
        precision: of matrix products; autocast is off with float32.
    """

    def __init__(
        self,
        model: MILModel,
        recipe: Recipe,
        *,
        task: Task | None = None,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.task = task or model.known_task
        self.precision = precision
        self.lr_at = make_lr_schedule(recipe)
        self.parameter_groups = model.parameter_groups()
        self.optimizers: dict[str, Optimizer] = {
            name: make_optimizer(parameters, recipe)
            for name, parameters in self.parameter_groups.items()
        }
        self.slow_weights = (
            SlowWeights(list(model.parameters()), recipe.lookahead) if recipe.lookahead else None
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the optimizers and of the slow weights."""
        slow = self.slow_weights.state_dict() if self.slow_weights else {}
        return collect_optimizer_state(self.optimizers) | {
            _SLOW_WEIGHTS_PREFIX + key: slow[key] for key in slow
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state_dict`` returned."""
        restore_optimizers(self.optimizers, state)
        if self.slow_weights:
            self.slow_weights.load_state_dict(select_prefix(state, _SLOW_WEIGHTS_PREFIX))

    def step(self, samples: Bags, epoch: float = 0.0) -> dict[str, Tensor]:
        """Take one step on some bags and return the mean of each loss, left on the device.

        Args:
            samples: the bags of one step, ``accumulate`` of the recipe. If the task needs a batch
                they are read twice, so that a single one has to be in memory.
            epoch: epochs done so far, with fractions; sets the learning rate.
        """
        for optimizer in self.optimizers.values():
            set_learning_rate(optimizer, self.lr_at(epoch))
        return self.update_weights(samples)

    def update_weights(self, samples: Bags) -> dict[str, Tensor]:
        """Take one step without changing the learning rate."""
        self.model.train()
        self._forget_gradients()
        if self.task.needs_batch:
            losses = [self._backward_batch(samples)]
            if not any(p.grad is not None for p in self.model.parameters()):
                return losses[0]  # nothing to learn, such as no event: no step either
        else:
            losses = [self._backward(sample, len(samples)) for sample in samples]
        self._move_weights()
        if self.slow_weights:
            self.slow_weights.step()
        return average_losses(losses)

    @torch.inference_mode()
    def predict(self, sample: Sample) -> Tensor:
        """Return the predictions for a bag."""
        output = compute_output(self.model, sample, self.precision)
        return self.model.activate(output, self.task).float()

    def release(self) -> None:
        """Free memory that only further steps need."""

    def _backward(self, sample: Sample, count: int) -> dict[str, Tensor]:
        losses = self._compute_losses(self._drop_instances(sample))
        for position, (group, loss) in enumerate(losses.items(), start=1):
            # A group's loss trains only that group: DTFD's second tier never moves its first.
            torch.autograd.backward(
                loss / count,
                inputs=[p for p in self.parameter_groups[group].values() if p.requires_grad],
                retain_graph=position < len(losses),
            )
        return {group: loss.detach() for group, loss in losses.items()}

    def _backward_batch(self, samples: Bags) -> dict[str, Tensor]:
        """Add the gradient of a loss over several bags, with one bag in memory at a time.

        The outputs of all bags give the gradient of the loss with respect to each. Then every bag
        is computed again, with the same random numbers, and takes its part.
        """
        states, outputs, prepared = [], [], []
        for sample in samples:
            states.append(_get_random_state(sample.features.device))
            with torch.no_grad():
                logits = self._compute_logits(self._drop_instances(sample))
            outputs.append(logits.to(torch.promote_types(logits.dtype, torch.float32)))
            prepared.append(sample.target)
        batch = torch.stack(outputs).requires_grad_()
        loss = self.task.batch_loss(batch, torch.stack(prepared))
        (group,) = self.parameter_groups  # models with losses of their own reject such a task
        (gradients,) = torch.autograd.grad(loss, batch)
        if gradients.any():
            chosen = [p for p in self.parameter_groups[group].values() if p.requires_grad]
            for sample, state, gradient in zip(samples, states, gradients, strict=True):
                _set_random_state(state, sample.features.device)
                logits = self._compute_logits(self._drop_instances(sample))
                torch.autograd.backward(logits, gradient.to(logits), inputs=chosen)
        return {group: loss.detach()}

    def _compute_logits(self, sample: Sample) -> Tensor:
        half = self.precision != torch.float32
        with torch.autocast(sample.features.device.type, self.precision, enabled=half):
            output: Output = self.model(sample.features, sample.coords, sample.plan)
        return output.logits

    def _compute_losses(self, sample: Sample) -> dict[str, Tensor]:
        half = self.precision != torch.float32
        with torch.autocast(sample.features.device.type, self.precision, enabled=half):
            output = self.model(sample.features, sample.coords, sample.plan)
            compute = partial(self.model.losses, output, task=self.task)
            return self.task.total_losses(compute, sample.target)

    def _drop_instances(self, sample: Sample) -> Sample:
        """Return the bag after instance dropout; at least one instance remains."""
        if not self.recipe.instance_dropout:
            return sample
        noise = torch.rand(len(sample.features))  # on the CPU: the same numbers on every device
        rows = (noise >= self.recipe.instance_dropout).nonzero()[:, 0]
        rows = rows if len(rows) else noise.argmax()[None]
        features = sample.features[rows.to(sample.features.device)]
        coords = sample.coords[rows.to(sample.coords.device)]
        plan = self.model.plan(coords.cpu().numpy(), features.float().cpu().numpy())
        return sample._replace(
            features=features,
            coords=coords,
            plan={key: torch.from_numpy(value).to(features.device) for key, value in plan.items()},
        )

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def _move_weights(self) -> None:
        self._clip_gradients()
        for optimizer in self.optimizers.values():
            optimizer.step()

    def _clip_gradients(self) -> None:
        named = dict(self.model.named_parameters())
        for prefix, norm in self.recipe.clip.items():
            chosen = [parameter for name, parameter in named.items() if name.startswith(prefix)]
            nn.utils.clip_grad_norm_(chosen, norm)


def average_losses(losses: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each loss over bags; of one bag without any work on a GPU."""
    if len(losses) == 1:
        return losses[0]
    return {group: torch.stack([each[group] for each in losses]).mean() for group in losses[0]}


def compute_output(
    model: MILModel, sample: Sample, precision: torch.dtype = torch.float32
) -> Output:
    """Return the output of a bag, computed in a precision; its logits are float32."""
    model.eval()
    half = precision != torch.float32
    with torch.autocast(sample.features.device.type, precision, enabled=half):
        output: Output = model(*sample[:3])
    if not half:
        return output
    # Probabilities in half precision would not sum to one.
    extras = {name: value.float() for name, value in (output.extras or {}).items()}
    return output._replace(logits=output.logits.float(), extras=extras)


_RandomState = tuple[Tensor, Tensor | None]
"""Of the CPU, and of the GPU if there is one."""


def _get_random_state(device: torch.device) -> _RandomState:
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_gpu


def _set_random_state(state: _RandomState, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


def make_optimizer(parameters: Mapping[str, nn.Parameter], recipe: Recipe) -> Optimizer:
    """Return the recipe's optimizer for some named parameters."""
    rule = _OPTIMIZERS[recipe.optimizer]
    groups = _make_parameter_groups(parameters, recipe)
    on_gpu = all(parameter.is_cuda for parameter in parameters.values())
    # Fused: one kernel for all parameters; torch has none for RAdam.
    fused = {"fused": True} if on_gpu and recipe.optimizer != "radam" else {}
    return rule(groups, lr=recipe.lr, betas=recipe.betas, **fused)


_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "radam": partial(RAdam, decoupled_weight_decay=True),
}


def _make_parameter_groups(
    parameters: Mapping[str, nn.Parameter], recipe: Recipe
) -> list[dict[str, Any]]:
    """Group parameters by weight decay and learning rate."""
    depths = _find_layer_depths(parameters)
    deepest = max(depths.values(), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        exempt = recipe.exempt_vectors and (parameter.ndim <= 1 or name.endswith(".bias"))
        scale = recipe.layer_decay ** (deepest - depths[name])
        key = (0.0 if exempt else recipe.weight_decay, scale)
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "lr": recipe.lr * scale, "scale": scale}
        for (decay, scale), members in groups.items()
    ]


def _find_layer_depths(names: Iterable[str]) -> dict[str, int]:
    """Number layers and blocks from 1; parameters before them get 0, those after them the last."""
    found = {name: re.search(r"(?:layers|blocks)\.(\d+)\.", name) for name in names}
    last = max((int(match.group(1)) + 1 for match in found.values() if match), default=-1)
    depths, around = {}, 0
    for name, match in found.items():
        around = last + 1 if match else around
        depths[name] = int(match.group(1)) + 1 if match else around
    return depths


class SlowWeights:
    """Lookahead (Zhang et al. 2019): every few steps, slow weights move towards the fast ones."""

    def __init__(self, parameters: list[nn.Parameter], lookahead: Lookahead) -> None:
        self.parameters = parameters
        self.lookahead = lookahead
        self.steps = 0
        self.slow: list[Tensor] | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the step count and the slow weights."""
        slow = {str(index): value for index, value in enumerate(self.slow or ())}
        return {"steps": torch.tensor(self.steps), **slow}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state_dict`` returned."""
        self.steps = int(state["steps"])
        if len(state) > 1:
            pairs = enumerate(self.parameters)
            self.slow = [state[str(index)].to(own, copy=True) for index, own in pairs]

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights; call after each optimizer step."""
        self.steps += 1
        if self.steps % self.lookahead.steps:
            return
        if self.slow is None:  # the first time only copies, as in the peers' code
            self.slow = [parameter.detach().clone() for parameter in self.parameters]
        for slow, fast in zip(self.slow, self.parameters, strict=True):
            slow.lerp_(fast, self.lookahead.alpha)
            fast.copy_(slow)


def make_lr_schedule(recipe: Recipe) -> Callable[[float], float]:
    """Return the recipe's learning rate as a function of the epochs done, with fractions."""

    def at(epoch: float) -> float:
        if epoch < recipe.warmup_epochs:
            return recipe.lr * epoch / recipe.warmup_epochs
        if recipe.schedule == "cosine":
            share = (epoch - recipe.warmup_epochs) / max(recipe.epochs - recipe.warmup_epochs, 1)
            falling = (1 + math.cos(math.pi * min(share, 1.0))) / 2
            return recipe.lr_min + (recipe.lr - recipe.lr_min) * falling
        if recipe.schedule == "steps":
            passed = sum(epoch >= share * recipe.epochs for share in recipe.milestones)
            return float(recipe.lr * recipe.gamma**passed)
        return recipe.lr

    return at


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of every group, scaled by its layer decay."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # of a captured CUDA graph
            group["lr"].fill_(rate * group["scale"])
        else:
            group["lr"] = rate * group["scale"]


def collect_optimizer_state(optimizers: Mapping[str, Optimizer]) -> dict[str, Tensor]:
    """Return the state of optimizers by group, parameter index and name."""
    return {
        f"{group}/{index}/{name}": value
        for group, optimizer in optimizers.items()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimizers(optimizers: Mapping[str, Optimizer], state: Mapping[str, Tensor]) -> None:
    """Load what ``collect_optimizer_state`` returned into new optimizers."""
    for group, optimizer in optimizers.items():
        values: dict[int, dict[str, Tensor]] = {}
        for key, value in select_prefix(state, f"{group}/").items():
            index, name = key.split("/")
            values.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": values})


def select_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, named without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
