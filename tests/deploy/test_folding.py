"""Parameters folded into each other: fewer passes, the same answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import WIDTH, make_model
from torch import nn

from sacmil.deploy.folding import fold_norms
from sacmil.models.sac_mil import SACBlock


def trained(**options: Any) -> nn.Module:
    """A SAC-MIL whose parameters are anything but their first values."""
    torch.manual_seed(0)
    model = make_model("sac_mil", **options).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize(
    "options",
    [{}, {"mlp": "mlp"}, {"position": "alibi"}, {"tail": "split"}, {"residual": False}],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 9, 130])
def test_predictions_stay_the_same(options: dict[str, Any], n: int) -> None:
    model = trained(**options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    features, coords = torch.randn(n, WIDTH).double(), torch.rand(n, 2).double()
    wanted, found = model(features, coords), fold_norms(model)(features, coords)
    torch.testing.assert_close(found.logits, wanted.logits)
    torch.testing.assert_close(found.scores, wanted.scores)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_nothing_is_left_of_the_norms_but_the_norm() -> None:
    blocks = [part for part in fold_norms(trained()).modules() if isinstance(part, SACBlock)]
    assert blocks
    assert all(block.norm.weight is None and block.norm.bias is None for block in blocks)
