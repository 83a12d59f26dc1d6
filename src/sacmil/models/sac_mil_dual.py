"""SAC-MIL in small regions with two heads: one before the blocks, one after them.

``sac_mil_local`` with a second pool and a second head, which see instances before they meet in the
block. Each head is trained by the whole label, and the logits are the mean of the two. With few
slides the block may memorize them: half of the prediction does not depend on it. docs/results.md
has the measurements.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sacmil.models._base import MILModel, Output, Planner, classification_loss, to_target
from sacmil.models._registry import register_model
from sacmil.models.sac_mil_local import SACMILLocal, pool_and_classify, to_output
from sacmil.nn.pooling import POOLS
from sacmil.nn.projection import embed_in_order


@register_model("sac_mil_dual")
class SACMILDual(MILModel):
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

    plan_keys = frozenset({"order"})

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
        start: float = 1.0,
    ) -> None:
        super().__init__(in_dim, num_classes)
        local = SACMILLocal(
            in_dim=in_dim,
            num_classes=num_classes,
            dim=dim,
            k=k,
            depth=depth,
            position=position,
            centers=centers,
            region_order=region_order,
            mlp=mlp,
            pool=pool,
            zero_start=zero_start,
            start=start,
        )
        self.regions, self.project, self.position = local.regions, local.project, local.position
        self.blocks, self.pool, self.head = local.blocks, local.pool, local.head
        self.pool_alone = POOLS[pool](dim)  # the names are in users' files
        self.head_alone = nn.Linear(dim, num_classes)

    @property
    def planner(self) -> Planner:
        """Regions of k neighbors."""
        return Planner("arrangement", self.regions)

    def embed_instances(self, features: Tensor, coords: Tensor, order: Tensor) -> Tensor:
        """(N, dim), in arranged order."""
        return embed_in_order(self.project, self.position, features, coords, order)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Instances (N, dim) stand in arranged order until the scores go back."""
        order = plan["order"]
        instances = self.embed_instances(features, coords, order)
        before, from_before, slide_before = pool_and_classify(
            instances, self.pool_alone, self.head_alone
        )
        after, from_after, slide_after = pool_and_classify(
            self.blocks(instances), self.pool, self.head
        )
        output = to_output(
            (before + after) / 2,
            (from_before + from_after) / 2,
            torch.cat([slide_before, slide_after]),
            order,
        )
        heads = {"before": before, "after": after}
        # not _replace, which torch 2.11 does not compile
        return Output(output.logits, output.scores, output.class_scores, heads, output.embedding)

    def losses(self, output: Output, target: Tensor | int) -> dict[str, Tensor]:
        """Train each head by itself."""
        target = to_target(target, output.logits)
        assert output.extras is not None
        before, after = (
            classification_loss(output.extras[head], target) for head in ("before", "after")
        )
        return {"all": (before + after) / 2}
