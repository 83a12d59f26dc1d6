"""SAC-MIL as our studies chose it: the paper's block, once, in small regions.

``sac_mil`` is the paper; docs/results/lab-notes.md says why this differs. There is one block of
regions of 8 found by peeling (the paper: three levels of 64), half as wide. There is no PROPE: the
regions carry enough of the positions. Half of the pool is attention. The block adds nothing at
first: training starts from single instances and learns which belong together. The head is linear,
so what each instance adds to each class is known exactly. These are its scores, where the paper
takes the norm of the last block.

``sac_mil_dual`` has a second pool and a second head, which see instances before they meet in the
block. Each head is trained by the whole label, and the logits are the mean of the two. With few
slides the block may memorize them: half of the prediction does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from sacmil.models._base import (
    MILModel,
    Output,
    Planner,
    compute_loss,
    select_predicted_class,
)
from sacmil.models._checks import check_positive
from sacmil.models._registry import register_model
from sacmil.models.sac_mil import SACMIL
from sacmil.nn.layers import embed_in_order
from sacmil.nn.pooling import POOLS, Pool
from sacmil.tasks import Task


class LocalSACMIL(MILModel):
    """What both models share: the paper's parts, and how they begin."""

    plan_keys = frozenset({"order"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "k": 4}
    has_two_heads: ClassVar[bool]

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: int = 256,
        k: int = 8,
        depth: int = 1,
        position: str = "none",
        centers: str = "peel",
        region_order: str = "hilbert",
        mlp: str = "linear",
        pool: str = "even",
        zero_start: bool = True,
        start: Annotated[float, check_positive] = 1.0,
    ) -> None:
        super().__init__(in_dim, num_classes)
        own = ("zero_start", "start")
        paper = SACMIL(**{key: value for key, value in self.options.items() if key not in own})
        self.regions, self.project, self.position = paper.regions, paper.project, paper.position
        self.blocks, self.pool, self.head = paper.blocks, paper.pool, paper.head
        self._init_blocks(start, zero_start=zero_start)
        if self.has_two_heads:
            self.pool_alone = POOLS[pool](dim)  # the names are in users' files
            self.head_alone = nn.Linear(dim, num_classes)

    @torch.no_grad()
    def _init_blocks(self, start: float, *, zero_start: bool) -> None:
        for block in self.blocks:
            # GELU is nearly linear close to zero, where a block cannot separate neighbors.
            next(block.get_submodule("w1").parameters()).mul_(start)
            *_, last = block.get_submodule("w2").modules()
            for parameter in last.parameters() if zero_start else ():
                parameter.zero_()

    @property
    def planner(self) -> Planner:
        """Regions of k neighbors."""
        return Planner("arrangement", self.regions)

    def embed_instances(self, features: Tensor, coords: Tensor, order: Tensor) -> Tensor:
        """(N, dim), in arranged order."""
        return embed_in_order(self.project, self.position, features, coords, order)


@register_model("sac_mil_local")
class SACMILLocal(LocalSACMIL):
    """SAC-MIL in small regions: the paper's block among direct neighbors.

    ``class_scores`` add up to the logits, but for the bias and what all classes share. ``scores``
    are those of the predicted class.

    Args:
        dim: width of the hidden layers.
        k: instances per region, and channel folds.
        depth: blocks; block l correlates rings of k^(l+1) instances.
        position: encoding, besides the regions: none, or any that sac_mil has.
        centers: how regions are found: peel, fps, fps_free or kd (see sacmil.regions).
        region_order: how regions follow each other, for PEG and deeper blocks: hilbert or fps.
        mlp: W1 and W2 as single layers with a GELU between (linear), or two layers each (mlp).
        pool: how instances become one vector: even, attention, mean or max.
        zero_start: whether blocks add nothing before they are trained.
        start: size of the weights a block begins with (W1), as a multiple of the usual.
    """

    has_two_heads = False

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """h (N, dim) stands in arranged order until the scores go back."""
        order = plan["order"]
        h = self.blocks(self.embed_instances(features, coords, order))
        parts = pool_and_classify(h, self.pool, self.head)
        return to_output(*parts, order, are_classes=self.has_classes)


@register_model("sac_mil_dual")
class SACMILDual(LocalSACMIL):
    """SAC-MIL in small regions, the mean of two heads: before the blocks and after them.

    ``class_scores`` add up to the logits, but for the biases and what all classes share. ``scores``
    are those of the predicted class.

    Args:
        dim: width of the hidden layers.
        k: instances per region, and channel folds.
        depth: blocks; block l correlates rings of k^(l+1) instances.
        position: encoding, besides the regions: none, or any that sac_mil has.
        centers: how regions are found: peel, fps, fps_free or kd (see sacmil.regions).
        region_order: how regions follow each other, for PEG and deeper blocks: hilbert or fps.
        mlp: W1 and W2 as single layers with a GELU between (linear), or two layers each (mlp).
        pool: how instances become one vector, both times: even, attention, mean or max.
        zero_start: whether blocks add nothing before they are trained.
        start: size of the weights a block begins with (W1), as a multiple of the usual.
    """

    has_two_heads = True

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Instances (N, dim) stand in arranged order until the scores go back."""
        order = plan["order"]
        h = self.embed_instances(features, coords, order)
        before, from_before, slide_before = pool_and_classify(h, self.pool_alone, self.head_alone)
        after, from_after, slide_after = pool_and_classify(self.blocks(h), self.pool, self.head)
        contributions = (from_before + from_after) / 2
        slide = torch.cat([slide_before, slide_after])
        logits = (before + after) / 2
        output = to_output(logits, contributions, slide, order, are_classes=self.has_classes)
        heads = {"before": before, "after": after}
        # not _replace, which torch 2.11 does not compile
        return Output(output.logits, output.scores, output.class_scores, heads, output.embedding)

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """Train each head by itself."""
        assert output.extras is not None
        heads = [output.extras[name] for name in ("before", "after")]
        known = task or self.task
        before, after = (compute_loss(logits, target, known) for logits in heads)
        return {"all": (before + after) / 2}

    def explain_unsupported(self, task: Task) -> str:
        """Return why: a layer of the task would have to follow both heads."""
        if task.make_head() is not None:
            return "both of its heads would need the layer of the task"
        return super().explain_unsupported(task)


def pool_and_classify(h: Tensor, pool: Pool, head: nn.Linear) -> tuple[Tensor, Tensor, Tensor]:
    """Pool instances h (N, dim) and classify the slide.

    Returns:
        Logits (C,), what each instance adds to them but for the bias (N, C), and the slide's
        vector (dim,).
    """
    weighted = pool.weights(h) * h
    slide = weighted.sum(0)
    return head(slide), nn.functional.linear(weighted, head.weight).detach(), slide


def to_output(
    logits: Tensor, contributions: Tensor, slide: Tensor, order: Tensor, *, are_classes: bool
) -> Output:
    """Put contributions (N, C) back into the bag's order; what all classes share is removed."""
    if are_classes and contributions.shape[1] > 1:
        contributions = contributions - contributions.mean(1, keepdim=True)
    by_class = torch.zeros_like(contributions).index_copy(0, order, contributions)
    scores = select_predicted_class(by_class, logits)
    return Output(logits, scores, class_scores=by_class, embedding=slide)
