"""Real commands on a cluster of three nodes, one of which is removed in the middle."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import busy_actors, extra_node
from ray_tasks import wait_for
from slide_maker import tissue_pixels, write_slide
from small_cohort import write_material
from tiny_encoder import write_encoder

from sacmil.results import read_predictions

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture
def run_and_remove_a_node(ray_cluster) -> Callable[..., str]:
    def run(*arguments: object) -> str:
        engine = ["--engine", "ray", "--address", ray_cluster.address]
        command = [sys.executable, "-P", "-m", "sacmil", *map(str, arguments), *engine]
        with extra_node(ray_cluster), extra_node(ray_cluster) as node:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                wait_for(lambda: busy_actors(node) or process.poll() is not None)
                assert process.poll() is None, process.communicate()
                ray_cluster.remove_node(node, allow_graceful=False)
                output = process.communicate(timeout=300)[0].decode()
            finally:
                process.kill()
        assert process.returncode == 0, output
        return output

    return run


def rows_of(table: Path) -> list[dict[str, Any]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_extraction_loses_no_slide_with_a_node(run_and_remove_a_node, tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    for seed in range(9):
        write_slide(tmp_path / f"slides/{seed}.tif", tissue_pixels(512, 512, seed), mpp=0.5)
    encoder = write_encoder(tmp_path / "colour.onnx")
    tiles = ["--mpp", 0.5, "--patch-size", 16, "--batch-size", 2]
    out = tmp_path / "out"
    run_and_remove_a_node(
        "extract", tmp_path / "slides", "--out", out, "--encoder", encoder, *tiles
    )
    assert [row["status"] for row in rows_of(out / "extraction.csv")] == ["done"] * 9


def test_crossval_loses_no_fold_with_a_node(run_and_remove_a_node, tmp_path: Path) -> None:
    cohort, bags, _ = write_material(tmp_path / "bags", patients=36)
    table = tmp_path / "table.csv"
    lines = [f"{s.patient_id},{s.slide_id},{cohort.classes[s.label]}" for s in cohort.slides]
    table.write_text("\n".join(["case_id,slide_id,label", *lines]))
    out = tmp_path / "run"
    options = ["--folds", 9, "--models", "mean_pool", "-o", "epochs=5"]
    run_and_remove_a_node("crossval", table, "--bags", tmp_path / "bags", "--out", out, *options)
    assert len(list(out.rglob("card.json"))) == 9
    predictions = read_predictions(out)
    assert set(predictions.slide_id[predictions.split == "test"]) == set(bags)
