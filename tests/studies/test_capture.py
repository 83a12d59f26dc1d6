"""Captured steps are those of plain training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from studies.capture import CapturingTrainer

from sacmil.models import MILModel, Recipe, Sample, create_model
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.training.trainer import Trainer

RECIPE = Recipe(optimizer="adamw", lr=1e-3, schedule="cosine", epochs=4, weight_decay=1e-2)
LENGTHS = (90, 130, 90, 90, 130, 90, 130, 90, 130, 90)


def bag(model: MILModel, n: int, number: int) -> Sample:
    random = np.random.default_rng(number)
    features = random.standard_normal((n, 16), dtype=np.float32)
    coords = make_tissue_coords(n, seed=number).astype(np.float64)
    plan = {key: torch.from_numpy(value).cuda() for key, value in model.plan(coords).items()}
    target = torch.tensor(number % 2, device="cuda")
    return Sample(torch.from_numpy(features).cuda(), torch.from_numpy(coords).cuda(), plan, target)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sac_mil", "abmil_gated", "transmil", "r2t"])
def test_captured_steps_are_those_of_plain_training(name: str) -> None:
    options = {"dim": 32, "k": 4} if name == "sac_mil" else {}
    found = []
    for trainer in (Trainer, CapturingTrainer):
        torch.manual_seed(0)
        model = create_model(name, in_dim=16, num_classes=2, **options).cuda()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # numbers are drawn in another order when captured
        bags = [bag(model, n, number) for number, n in enumerate(LENGTHS)]
        taught = trainer(model, RECIPE)
        losses = [float(taught.step([one], step / 10)["all"]) for step, one in enumerate(bags)]
        answers = [taught.predict(one) for one in bags]
        found.append((torch.tensor(losses), torch.stack(answers).cpu()))
    (plain, plainly), (replayed, again) = found
    assert plain.std() > 1e-3
    torch.testing.assert_close(replayed, plain, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(again, plainly, atol=5e-3, rtol=5e-3)
