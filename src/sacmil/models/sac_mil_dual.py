"""SAC-MIL in small regions, asked twice: what instances say alone, and what they say together.

``sac_mil_local`` with a second pool and a second head, which see instances before they meet in the
block. Each of the two is trained by the whole label, and the logits are the mean of theirs. With
few slides the block may learn them by heart: half of the answer does not come from it. What this is
worth is in docs/results.md.
"""

from __future__ import annotations

from torch import Tensor, nn

from sacmil.models._base import Output, classification_loss, to_target
from sacmil.models._registry import register_model
from sacmil.models.sac_mil_local import SACMILLocal, pool_and_classify
from sacmil.nn.pooling import POOLS


@register_model("sac_mil_twice")
class SACMILDual(SACMILLocal):
    """SAC-MIL in small regions whose answer is the mean of two: before blocks, and after them.

    ``class_scores`` add up to the logits, but for the biases and what all classes share. ``scores``
    are those of the predicted class.

    Args:
        dim: width inside.
        k: instances per region, and channel folds.
        depth: blocks; block l correlates rings of k^(l+1) instances.
        position: how places enter, besides the regions: none, or any that sac_mil has.
        centres: how regions are found: peel, fps, fps_free or kd (see sacmil.regions).
        region_order: how regions follow each other, for PEG and deeper blocks: hilbert or fps.
        mlp: W1 and W2 as single layers with a GELU between (linear), or two layers each (mlp).
        pool: how instances become one vector, both times: even, attention, mean or max.
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
            zero_start=zero_start,
            start=start,
        )
        self.pool_alone = POOLS[pool](dim)
        self.head_alone = nn.Linear(dim, num_classes)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Instances (N, dim) stand in arranged order until the scores go back."""
        order = plan["order"]
        instances = self.embed_instances(features, coords, order)
        alone, by_alone = pool_and_classify(instances, self.pool_alone, self.head_alone)
        together, by_together = pool_and_classify(self.blocks(instances), self.pool, self.head)
        logits, scores, class_scores, _ = self._to_output(
            (alone + together) / 2, (by_alone + by_together) / 2, order
        )
        # not _replace, which torch 2.11 does not compile
        return Output(logits, scores, class_scores, {"alone": alone, "together": together})

    def losses(self, output: Output, target: Tensor | int) -> dict[str, Tensor]:
        """Each of the two learns by itself."""
        target = to_target(target, output.logits)
        assert output.extras is not None
        alone, together = (
            classification_loss(output.extras[way], target) for way in ("alone", "together")
        )
        return {"all": (alone + together) / 2}
