"""SAC-MIL as our studies chose it: the paper's block, once, in small regions.

What differs from ``sac_mil``, which stays the paper, and why, is in docs/results.md: one block of
regions of 8 (the paper: three levels of 64) found by peeling, half as wide, without PROPE: regions
tell enough of places; half of the pool is attention. The block is nothing at first: training starts
from instances that stand alone, and learns who belongs together. The head is linear, so what each
instance adds to each class is known exactly: these are its scores, where the paper draws the norm
of the last block.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sacmil.models._base import Output
from sacmil.models._options import check_flag, check_positive
from sacmil.models._registry import register_model
from sacmil.models.sac_mil import SACMIL
from sacmil.nn.pooling import Pool


@register_model("sac_mil_local")
class SACMILLocal(SACMIL):
    """SAC-MIL in small regions, which sees who stands beside whom.

    ``class_scores`` add up to the logits, but for the bias and what all classes share. ``scores``
    are those of the predicted class.

    Args:
        dim: width inside.
        k: instances per region, and channel folds.
        depth: blocks; block l correlates rings of k^(l+1) instances.
        position: how places enter, besides the regions: none, or any that sac_mil has.
        centres: how regions are found: peel, fps, fps_free or kd (see sacmil.regions).
        region_order: how regions follow each other, for PEG and deeper blocks: hilbert or fps.
        mlp: W1 and W2 as single layers with a GELU between (linear), or two layers each (mlp).
        pool: how instances become one vector: even, attention, mean or max.
        zero_start: whether blocks add nothing before they are trained.
        start: size of the weights a block begins with (W1), as a multiple of the usual.
    """

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: int = 256,
        k: int = 8,
        depth: int = 1,
        position: str = "none",
        centres: str = "peel",
        region_order: str = "hilbert",
        mlp: str = "linear",
        pool: str = "even",
        zero_start: bool = True,
        start: float = 1.0,
    ) -> None:
        super().__init__(
            in_dim=in_dim,
            num_classes=num_classes,
            dim=dim,
            k=k,
            depth=depth,
            position=position,
            centres=centres,
            region_order=region_order,
            mlp=mlp,
            pool=pool,
        )
        if check_flag("zero_start", zero_start):
            self._init_blocks_to_zero()
        self._scale_first_layers(check_positive("start", start))

    def _init_blocks_to_zero(self) -> None:
        """The last layer of each block at zero."""
        for block in self.blocks:
            *_, last = block.get_submodule("w2").modules()
            for parameter in last.parameters():
                nn.init.zeros_(parameter)

    @torch.no_grad()
    def _scale_first_layers(self, factor: float) -> None:
        """GELU is nearly a straight line close to zero, and blind to who stands beside whom."""
        for block in self.blocks:
            next(block.get_submodule("w1").parameters()).mul_(factor)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """h (N, dim) stands in arranged order until the scores go back."""
        order = plan["order"]
        h = self.blocks(self.embed_instances(features, coords, order))
        return self._to_output(*pool_and_classify(h, self.pool, self.head), order)

    def _to_output(self, logits: Tensor, contributions: Tensor, order: Tensor) -> Output:
        """The answer, and what instances add to it: added (N, C), in arranged order."""
        contributions = (
            contributions - contributions.mean(1, keepdim=True)
            if self.num_classes > 1
            else contributions
        )
        by_class = torch.zeros_like(contributions).index_copy(0, order, contributions)
        predicted = by_class.index_select(1, logits.argmax(0, keepdim=True))[:, 0]
        return Output(logits, predicted, class_scores=by_class)


def pool_and_classify(h: Tensor, pool: Pool, head: nn.Linear) -> tuple[Tensor, Tensor]:
    """Logits (C,) of instances h (N, dim), and what each adds to them (N, C), but for the bias."""
    parts = pool.weights(h) * h
    return head(parts.sum(0)), nn.functional.linear(parts, head.weight).detach()
