"""Every model learns from a bag of 20,000 instances within 8 GB, from a shorter one within less."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from exhaustive import choose_cases, choose_count

from sacmil import list_models
from sacmil.nn.correlations import CORRELATION_BLOCKS
from sacmil.nn.positions import POSITIONS

SCRIPT = """
import json, resource, sys
import torch
from sacmil import create_model
from sacmil.synthetic.tissue_shape import make_tissue_coords

name, options, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = create_model(name, in_dim=1024, num_classes=2, **options).train()
coords = torch.from_numpy(make_tissue_coords(count, seed=0)).double()
output = model(torch.randn(count, 1024), coords)
sum(model.losses(output, torch.tensor(1)).values()).backward()
assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""

COUNT = choose_count(20_000, sample=4_000)
MOST_GB = 1 + 7 * COUNT / 20_000
"""8 for 20,000 instances; torch and the model take up to one of them."""
CASES = [(name, {}) for name in list_models()]
CASES += [("sac_mil", {"correlation": name}) for name in CORRELATION_BLOCKS]
CASES += [("sac_mil", {"position": name}) for name in POSITIONS]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise there")
@pytest.mark.parametrize(("name", "options"), choose_cases(CASES, step=3), ids=str)
def test_large_bags_fit_into_memory(name: str, options: dict) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, json.dumps(options), str(COUNT)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < MOST_GB
