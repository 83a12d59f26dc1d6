"""One optimisation step, the same for every model: it knows the hooks and nothing else."""

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
    """A model with its optimizers; ``step`` learns from a few bags.

    Args:
        model: trained in place.
        recipe: how.
        class_weights: (C,), what the loss of a bag of each class is multiplied by.
        precision: what matrix products are taken in; float32 leaves everything as it is.
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
        """What the optimizers remember."""
        slow = self.slow_weights.state_dict() if self.slow_weights else {}
        return collect_optimizer_state(self.optimizers) | {
            _SLOW_WEIGHTS_PREFIX + key: slow[key] for key in slow
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up what ``state`` told."""
        slow = {key: value for key, value in state.items() if key.startswith(_SLOW_WEIGHTS_PREFIX)}
        rest = {key: value for key, value in state.items() if key not in slow}
        restore_optimizers(self.optimizers, rest)
        if self.slow_weights:
            self.slow_weights.load_state_dict(
                {key.removeprefix(_SLOW_WEIGHTS_PREFIX): value for key, value in slow.items()}
            )

    def step(self, samples: Sequence[Sample], epoch: float = 0.0) -> dict[str, Tensor]:
        """Learn from some bags at once; the mean of each loss over them, left on the device.

        Args:
            samples: the bags of one step; the recipe's ``accumulate`` says how many.
            epoch: epochs done so far, fractions included: it sets the learning rate.
        """
        for optimizer in self.optimizers.values():
            set_learning_rate(optimizer, self.lr_at(epoch))
        return self.update_weights(samples)

    def update_weights(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """A step with the learning rate as it is."""
        self.model.train()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        told = [self._backward(sample, len(samples)) for sample in samples]
        self._clip_gradients()
        for optimizer in self.optimizers.values():
            optimizer.step()
        if self.slow_weights:
            self.slow_weights.step()
        return {group: torch.stack([each[group] for each in told]).mean() for group in told[0]}

    @torch.inference_mode()
    def predict_probabilities(self, sample: Sample) -> Tensor:
        """The probabilities of a bag."""
        return predict_probabilities(self.model, sample, self.precision)

    def _backward(self, sample: Sample, count: int) -> dict[str, Tensor]:
        losses = self._compute_losses(self._drop_instances(sample))
        for position, (group, loss) in enumerate(losses.items(), start=1):
            # A group's loss trains that group alone: DTFD's second tier never moves its first.
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
        """What the model's losses are on average, were labels drawn anew now and then.

        Of a cross-entropy that is label smoothing; it asks a model for nothing but its losses.
        """
        losses, share = self.model.losses(output, target), self.recipe.label_smoothing
        if not share:
            return losses
        classes = range(max(self.model.num_classes, 2))
        drawn = [self.model.losses(output, torch.full_like(target, c)) for c in classes]
        return {
            group: (1 - share) * loss + share * torch.stack([each[group] for each in drawn]).mean()
            for group, loss in losses.items()
        }

    def _drop_instances(self, sample: Sample) -> Sample:
        """The bag without the instances that instance dropout leaves out this time."""
        if not self.recipe.instance_dropout:
            return sample
        drawn = torch.rand(len(sample.features))  # on the CPU, so that devices draw alike
        kept = (drawn >= self.recipe.instance_dropout).nonzero()[:, 0]
        kept = kept if len(kept) else drawn.argmax()[None]
        features = sample.features[kept.to(sample.features.device)]
        coords = sample.coords[kept.to(sample.coords.device)]
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
    """The probabilities of a bag, in float32."""
    return model.probabilities(compute_output(model, sample, precision)).float()


def compute_output(
    model: MILModel, sample: Sample, precision: torch.dtype = torch.float32
) -> Output:
    """The output of a bag, computed in a precision; probabilities can be made of it."""
    model.eval()
    half = precision != torch.float32
    with torch.autocast(sample.features.device.type, precision, enabled=half):
        output: Output = model(*sample[:3])
    return _to_float32(output) if half else output


def _to_float32(output: Output) -> Output:
    """What probabilities are made of: with half as many digits they would not sum to one."""
    extras = {name: value.float() for name, value in (output.extras or {}).items()}
    return output._replace(logits=output.logits.float(), extras=extras)
