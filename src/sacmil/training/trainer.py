"""One optimisation step, the same for every model: it uses the model's hooks only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sacmil.models import MILModel, Output, Recipe, Sample
from sacmil.training.optimizer import (
    SlowWeights,
    collect_optimizer_state,
    make_lr_schedule,
    make_optimizer,
    restore_optimizers,
    set_learning_rate,
)

_SLOW_WEIGHTS_PREFIX = "slow weights/"


class Trainer:
    """A model with its optimizers; ``step`` trains it on a few bags.

    Args:
        model: trained in place.
        recipe: how to train.
        class_weights: (C,), factors of the loss by class.
        precision: of matrix products; autocast is off with float32.
    """

    def __init__(
        self,
        model: MILModel,
        recipe: Recipe,
        *,
        class_weights: Tensor | None = None,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.class_weights = class_weights
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
        slow = {key: value for key, value in state.items() if key.startswith(_SLOW_WEIGHTS_PREFIX)}
        rest = {key: value for key, value in state.items() if key not in slow}
        restore_optimizers(self.optimizers, rest)
        if self.slow_weights:
            self.slow_weights.load_state_dict(
                {key.removeprefix(_SLOW_WEIGHTS_PREFIX): value for key, value in slow.items()}
            )

    def step(self, samples: Sequence[Sample], epoch: float = 0.0) -> dict[str, Tensor]:
        """Take one step on some bags and return the mean of each loss, left on the device.

        Args:
            samples: the bags of one step, ``accumulate`` of the recipe.
            epoch: epochs done so far, with fractions; sets the learning rate.
        """
        for optimizer in self.optimizers.values():
            set_learning_rate(optimizer, self.lr_at(epoch))
        return self.update_weights(samples)

    def update_weights(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Take one step without changing the learning rate."""
        self.model.train()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        losses = [self._backward(sample, len(samples)) for sample in samples]
        self._clip_gradients()
        for optimizer in self.optimizers.values():
            optimizer.step()
        if self.slow_weights:
            self.slow_weights.step()
        return {group: torch.stack([each[group] for each in losses]).mean() for group in losses[0]}

    @torch.inference_mode()
    def predict_probabilities(self, sample: Sample) -> Tensor:
        """Return the probabilities of a bag."""
        return predict_probabilities(self.model, sample, self.precision)

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

    def _compute_losses(self, sample: Sample) -> dict[str, Tensor]:
        half = self.precision != torch.float32
        with torch.autocast(sample.features.device.type, self.precision, enabled=half):
            output = self.model(sample.features, sample.coords, sample.plan)
            losses = self._smooth_losses(output, sample.target)
        if self.class_weights is None:
            return losses
        weight = self.class_weights[sample.target]
        return {group: weight * loss for group, loss in losses.items()}

    def _smooth_losses(self, output: Output, target: Tensor) -> dict[str, Tensor]:
        """Return the expected losses if the label is random with probability ``label_smoothing``.

        For a cross-entropy this is label smoothing. It needs nothing but the model's losses.
        """
        losses, share = self.model.losses(output, target), self.recipe.label_smoothing
        if not share:
            return losses
        classes = range(max(self.model.num_classes, 2))
        each_class = [self.model.losses(output, torch.full_like(target, c)) for c in classes]
        return {
            group: (1 - share) * loss + share * torch.stack([x[group] for x in each_class]).mean()
            for group, loss in losses.items()
        }

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

    def _clip_gradients(self) -> None:
        named = dict(self.model.named_parameters())
        for prefix, norm in self.recipe.clip.items():
            chosen = [parameter for name, parameter in named.items() if name.startswith(prefix)]
            nn.utils.clip_grad_norm_(chosen, norm)


def predict_probabilities(
    model: MILModel, sample: Sample, precision: torch.dtype = torch.float32
) -> Tensor:
    """Return the probabilities of a bag, in float32."""
    return model.probabilities(compute_output(model, sample, precision)).float()


def compute_output(
    model: MILModel, sample: Sample, precision: torch.dtype = torch.float32
) -> Output:
    """Return the output of a bag, computed in a precision; its logits are float32."""
    model.eval()
    half = precision != torch.float32
    with torch.autocast(sample.features.device.type, precision, enabled=half):
        output: Output = model(*sample[:3])
    return _to_float32(output) if half else output


def _to_float32(output: Output) -> Output:
    """Convert logits and extras: probabilities in half precision would not sum to one."""
    extras = {name: value.float() for name, value in (output.extras or {}).items()}
    return output._replace(logits=output.logits.float(), extras=extras)
