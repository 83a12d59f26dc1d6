"""The base class of all models: one bag in, one Output out, and five hooks.

Shape letters used throughout: N instances, D features, C classes. One bag at a time: there is no
batch axis.
"""

from __future__ import annotations

import inspect
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.bag import Bag
from sacmil.card import name_classes
from sacmil.errors import InputError, ModelError, UnsupportedTaskError
from sacmil.models._checks import (
    check_at_least,
    check_device,
    check_inputs,
    check_options,
    to_tensor,
    warn_if_pixels,
)
from sacmil.models._recipe import PAPER, PAPER_BEST_EPOCH, Recipe
from sacmil.plans import Planner as Planner
from sacmil.plans import make_plan
from sacmil.tasks import Classification, Task

Array = npt.NDArray[Any]
Plan = Mapping[str, Array | Tensor]


class Output(NamedTuple):
    """The output of a model; instances are in the order of the bag."""

    logits: Tensor
    """(C,)"""
    scores: Tensor
    """(N,), how much each instance matters; for the predicted class if scores are by class."""
    class_scores: Tensor | None = None
    """(N, C), if the model has a score per class."""
    extras: dict[str, Tensor] | None = None
    """Inputs of the model's own losses."""
    embedding: Tensor | None = None
    """(E,), the slide's vector that the head sees; one per class, flattened, where there are."""


class Sample(NamedTuple):
    """One labelled bag as training sees it."""

    features: Tensor
    """(N, D)"""
    coords: Tensor
    """(N, 2), patch units."""
    plan: Plan
    target: Tensor
    """(), class index, 0 or 1 for a single output; for other tasks as prepared."""
    resident: bool = False
    """Whether its tensors stay where they are for the whole training."""


class Reference(NamedTuple):
    """An official checkpoint, parsed."""

    options: dict[str, Any]
    """Constructor arguments that its shapes imply, in_dim and num_classes included."""
    state: dict[str, Tensor]
    """Its parameters under our names."""
    assumed: Mapping[str, Any] = MappingProxyType({})
    """Arguments that it does not show, where the official code differs from our defaults."""
    notes: tuple[str, ...] = ()
    """What to know about its predictions, as sentences."""


class MILModel(nn.Module, ABC):
    """A model of slides. A model is final; what it may replace are the five hooks.

    A model implements ``aggregate`` and, if its method needs it, replaces a hook: ``plan``,
    ``activate``, ``losses``, ``parameter_groups``, ``stages``. The constructor's signature is
    its configuration.
    """

    name: ClassVar[str]
    """The registered name, set by the decorator."""
    order_matters: ClassVar[bool] = False
    """Whether another order of the same instances changes the prediction."""
    scores_are_logits: ClassVar[bool] = False
    """Whether class_scores are the logits that an instance has by itself; otherwise they add up to
    the slide's, but for a bias."""
    coords_matter: ClassVar[bool] = True
    """Whether moving instances to other positions changes the prediction."""
    dead_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters the official model carries but never uses: they get no gradient."""
    plan_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys a plan must have; the last axis of each has the length of the bag."""
    recipes: ClassVar[Mapping[str, Recipe]] = {"paper": PAPER, "official": PAPER_BEST_EPOCH}
    small_options: ClassVar[Mapping[str, Any]] = {}
    """Options of a small model, for tests whose truth does not depend on its size."""
    not_exportable: ClassVar[str] = ""
    """Why the model cannot be exported to ONNX, in a sentence; empty if it can."""
    needs_losses: ClassVar[frozenset[str]] = frozenset()
    """Modules only ``losses`` trains: cross-entropy on the logits gives them no gradient."""

    needs_classes: ClassVar[str] = ""
    """Why the model can only be trained for classes, in a sentence; empty if it takes any task."""

    classes: tuple[str, ...] | None = None
    """Names of the outputs, where they are known."""
    task: Task | None = None
    """What the model predicts, if it is known; see set_task."""
    task_head: nn.Module | None
    """A layer of the task after the model's own head."""
    options: dict[str, Any]
    """Every argument of the constructor, defaults included: with the name, all of the model."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Recorded here so that no model has to: save_model writes them, load_model passes them.
        self = super().__new__(cls)
        bound = inspect.signature(cls).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        options = {name: to_json_value(value) for name, value in bound.arguments.items()}
        check_options(cls, options)
        object.__setattr__(self, "options", options)
        return self

    def __init__(self, in_dim: int, num_classes: int) -> None:
        super().__init__()
        self.in_dim = check_at_least("in_dim", in_dim, 1)
        self.num_classes = check_at_least("num_classes", num_classes, 1)
        self.register_module("task_head", None)

    def forward(
        self,
        features: Tensor | Array,
        coords: Tensor | Array | None = None,
        plan: Plan | None = None,
    ) -> Output:
        """Return the output for one bag.

        Args:
            features: (N, D) floats, a tensor on the model's device or a numpy array.
            coords: (N, 2), in patch units (level-0 pixels / patch size), likewise; required.
            plan: what ``plan`` returned for this bag; made here if not given.

        Raises:
            InputError: what is given is not one bag for this model; says what to give instead.
        """
        if not isinstance(features, Tensor):
            features = to_tensor("features", features, self._device or torch.device("cpu"))
        if not isinstance(coords, Tensor):
            coords = to_tensor("coords", coords, features.device)
        check_inputs(features, coords, self.in_dim, self.name)
        check_device("features", features, self._device or features.device)
        check_device("coords", coords, features.device)
        if plan is None:
            plan = self._make_plan(features, coords)
        self._check_plan(plan, features)
        tensors = {
            key: torch.as_tensor(value, device=features.device) for key, value in plan.items()
        }
        features = features.to(self.dtype)
        output = self.aggregate(features, coords, tensors)
        if not torch.compiler.is_compiling():
            self._check_output(output, len(features))
            check_features_finite(output, features)
        return self._apply_task_head(output)

    def compute_output(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Return the output for checked inputs, for a graph that is traced."""
        return self._apply_task_head(self.aggregate(features, coords, plan))

    def _apply_task_head(self, output: Output) -> Output:
        """Return the output with the logits after the layer of the task, if it has one."""
        if self.task_head is None:
            return output
        logits: Tensor = self.task_head(output.logits)
        # not _replace, which torch 2.11 does not compile
        return Output(logits, output.scores, output.class_scores, output.extras, output.embedding)

    def set_task(self, task: Task) -> None:
        """Let the model predict what a task is about; the task may add a layer.

        Raises:
            UnsupportedTaskError: the model cannot be trained for it.
            ModelError: the model has another number of outputs.
        """
        if reason := self.explain_unsupported(task):
            raise UnsupportedTaskError(
                f"{self.name} cannot be trained for {task.card.description}: {reason}. Use another "
                "model, such as sac_mil_near_far or abmil"
            )
        if not task.has_classes and self.num_classes != task.outputs:
            raise ModelError(
                f"{self.name} has {self.num_classes} outputs; {task.card.description} needs "
                f"{task.outputs}: create the model with num_classes={task.outputs}"
            )
        self.task, self.task_head = task, task.make_head()

    def explain_unsupported(self, task: Task) -> str:
        """Return why the model cannot be trained for a task; empty if it can."""
        if task.needs_batch and type(self).losses is not MILModel.losses:
            return "its loss needs several slides at once, and the model has losses of its own"
        return "" if task.has_classes else self.needs_classes

    @property
    def has_classes(self) -> bool:
        """Whether its outputs are classes, of which one is true; unless a task says otherwise."""
        return self.task is None or self.task.has_classes

    @property
    def known_task(self) -> Task:
        """What the model predicts; classes unless a task was set."""
        return self.task or Classification(name_classes(self.classes, self.num_classes))

    @abstractmethod
    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Compute the Output from checked inputs on one device."""

    # The five hooks.

    def plan(self, coords: Array, features: Array | None = None) -> dict[str, Array]:
        """Return what depends on the bag but not on the weights, without torch; callers cache it.

        A model that defines ``planner`` instead can be exported: the card stores it.
        """
        if isinstance(coords, Bag):
            raise InputError(
                "coords are a Bag; expected arrays: model.plan(bag.patch_coords, bag.features)"
            )
        plan = make_plan(self.planner.name, self.planner.options, coords, features)
        warn_if_pixels(coords)
        return plan

    def activate(self, output: Output, task: Task) -> Tensor:
        """Return the predictions of a task (P,); for a single output of classes that of class 1.

        Args:
            output: what the model returned.
            task: what is predicted.
        """
        return task.activate(output.logits)

    def probabilities(self, output: Output) -> Tensor:
        """Return the predictions of the model's own task: of classes their probabilities."""
        return self.activate(output, self.known_task)

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """Return a loss for each group of parameters; a group's loss trains that group.

        Args:
            output: what the model returned.
            target: the class index, as a tensor without axes or as a number; for other tasks what
                their ``prepare`` returns.
            task: what is predicted; None means the task that was set, or classes.
        """
        return {"all": compute_loss(output.logits, target, task or self.task)}

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """Return parameters by name, in groups with an optimizer each; keys as in ``losses``."""
        return {"all": dict(self.named_parameters())}

    def stages(self, training_bags: Iterable[Sample]) -> Iterator[MILModel]:
        """Yield the models to train one after the other, this one last.

        Code after a ``yield`` runs when the yielded model has been trained. A method that needs a
        trained helper yields it, reads its weights, then yields itself.
        """
        yield self

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """Parse a checkpoint of the official implementation."""
        raise ModelError("there are no official checkpoints of this model")

    @property
    def planner(self) -> Planner:
        """How plans are made, as data: a planner of sacmil.plans and its options."""
        return Planner()

    @property
    def dtype(self) -> torch.dtype:
        """The type the parameters are kept in."""
        return next((p.dtype for p in self.parameters()), torch.get_default_dtype())

    @property
    def _device(self) -> torch.device | None:
        """Where the parameters are; None if there are none."""
        return next((p.device for p in self.parameters()), None)

    def _make_plan(self, features: Tensor, coords: Tensor) -> Plan:
        if torch.compiler.is_dynamo_compiling():
            # imported here: it loads torch's compiler, which takes 3 s
            from sacmil.models._outside_graph import plan_outside_graph

            plan: Plan = plan_outside_graph(self._plan_in_numpy, features, coords)
            return plan
        # not is_exporting, which torch 2.11 takes to be true while compiling
        if torch.compiler.is_compiling():
            raise InputError(
                "an exported graph cannot make a plan; expected the plan of the example bag as "
                "third argument, or use sacmil.deploy.export.export_model"
            )
        return self._plan_in_numpy(features, coords)

    def _plan_in_numpy(self, features: Tensor, coords: Tensor) -> Plan:
        return self.plan(to_numpy(coords), to_numpy(features))

    def _check_output(self, output: Output, instances: int) -> None:
        for what, tensor, expected in (
            ("logits", output.logits, (self.num_classes,)),
            ("scores", output.scores, (instances,)),
        ):
            if tuple(tensor.shape) != expected:
                raise ModelError(
                    f"{self.name} returns {what} of shape {tuple(tensor.shape)}; expected "
                    f"{expected}: correct its aggregate"
                )

    def _check_plan(self, plan: Plan, features: Tensor) -> None:
        missing = self.plan_keys - set(plan)
        if missing:
            raise InputError(
                f"the plan lacks {', '.join(sorted(missing))}; expected what {self.name}.plan "
                "returned for this bag"
            )
        for key in self.plan_keys:
            if plan[key].shape[-1] != features.shape[0]:
                raise InputError(
                    f"the plan's {key} is for {plan[key].shape[-1]} instances, the bag has "
                    f"{features.shape[0]}; expected the plan of this bag, make it again"
                )


def to_target(target: Tensor | int, logits: Tensor) -> Tensor:
    """A class index as a tensor on the device of the logits.

    Raises:
        InputError: it is neither a whole number nor a tensor.
    """
    if isinstance(target, Tensor):
        return target
    if not isinstance(target, numbers.Integral):
        raise InputError(
            f"target is a {type(target).__name__}; expected the class index: a whole number, or a "
            "tensor such as torch.tensor(1)"
        )
    classes = max(2, logits.shape[-1])
    if not 0 <= target < classes:
        raise InputError(f"target is class {target}; expected an index from 0 to {classes - 1}")
    return torch.tensor(int(target), device=logits.device)


def classification_loss(
    logits: Tensor, target: Tensor | int, *, independent: bool = False
) -> Tensor:
    """Cross-entropy of the class index; of a sigmoid where there is a single output.

    Args:
        logits: (C,), or (S, C) for the mean over S predictions of the same slide.
        target: as for ``MILModel.losses``.
        independent: whether each class has a sigmoid of its own.
    """
    target = to_target(target, logits).expand(logits.shape[:-1])
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits[..., 0], target.to(logits.dtype))
    if independent:
        wanted = F.one_hot(target, logits.shape[-1]).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, wanted)
    return F.cross_entropy(logits, target)


def compute_loss(logits: Tensor, target: Tensor | int, task: Task | None = None) -> Tensor:
    """Return the loss of a bag's logits (O,) and prepared target; without a task, of classes."""
    if task is None or not isinstance(target, Tensor):
        return classification_loss(logits, target)
    return task.prepared_loss(logits, target)


def classify_mean(h: Tensor, attention: nn.Module, head: nn.Module) -> Output:
    """Classify the mean of instances h (N, dim), weighted by attention: these are the scores."""
    weights: Tensor = attention(h).softmax(0)[:, 0]  # (N,)
    slide = weights @ h
    return Output(head(slide), weights, embedding=slide)


def average_logits(logits: Tensor, *, independent: bool = False) -> Tensor:
    """(S, C) to (C,): logits of the mean probability, by logarithms so that they stay finite."""
    if len(logits) == 1:
        return logits[0]
    if independent or logits.shape[1] == 1:
        return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
    return logits.log_softmax(1).logsumexp(0) - math.log(len(logits))


def select_predicted_class(class_scores: Tensor, logits: Tensor) -> Tensor:
    """(N,), the column of class_scores (N, C) for the class the slide is given."""
    return class_scores.index_select(1, logits.argmax(0, keepdim=True))[:, 0]


def check_features_finite(output: Output, features: Tensor) -> None:
    """Reject features that are NaN or infinite, as a Bag does.

    They are those of the model's type: float32 has no 1e300. The small outputs are checked first,
    so finite bags cost nothing. A GPU would have to wait.
    """
    if output.logits.device.type != "cpu":
        return
    if bool(output.logits.isfinite().all() & output.scores.isfinite().all()):
        return
    rows = (~features.isfinite().all(1)).nonzero()[:, 0].tolist()
    if rows:
        kind = str(features.dtype).removeprefix("torch.")
        raise InputError(
            f"features of {len(rows)} of {len(features)} instances hold NaN or infinity (first: "
            f"row {rows[0]}), as {kind}; expected finite values, extract this slide again"
        )


def to_json_value(value: Any) -> Any:
    """Numbers of numpy and tuples as Python's own numbers and lists, which JSON can hold."""
    if isinstance(value, tuple):
        return [to_json_value(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def to_numpy(tensor: Tensor) -> Array:
    """The values of a tensor, of any device and precision."""
    tensor = tensor.detach().cpu()
    array = tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return np.asarray(array)
