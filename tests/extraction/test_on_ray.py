"""On a Ray cluster: the same bags, and a killed actor's slide is retried."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_cluster import busy_actors
from ray_tasks import wait_for

from sacmil import read_bag
from sacmil.encoders import load_encoder
from sacmil.errors import SacMILError
from sacmil.extraction import (
    ExtractionResources,
    ExtractionSettings,
    extract_on_ray,
    extract_slides,
)
from sacmil.parallel import TaskOutcome
from sacmil.slides.search import find_slides
from sacmil.slides.tiling import TileSpec

SETTINGS = ExtractionSettings(tiles=TileSpec(mpp=0.5, patch_size=64))
RESOURCES = ExtractionResources(workers=1, threads=1, batch_size=8)


@pytest.fixture
def cluster(ray_cluster) -> str:
    return ray_cluster.address


def bags(out: Path) -> dict:
    return {path.stem: read_bag(path) for path in sorted(out.glob("*/features_*/*.h5"))}


@pytest.mark.slow
@pytest.mark.ray
def test_a_bad_slide_fails_and_the_others_are_done(cluster, cohort, tmp_path, encoder) -> None:
    (tmp_path / "words.tif").write_text("not a slide")
    slides = find_slides([cohort, tmp_path / "words.tif"])
    rows = extract_on_ray(
        slides, tmp_path / "out", encoder, address=cluster, settings=SETTINGS, resources=RESOURCES
    )
    assert {row.slide_id for row in rows if row.status == "failed"} == {"words"}
    assert len(bags(tmp_path / "out")) == 3


@pytest.mark.slow
@pytest.mark.ray
def test_an_encoder_that_cannot_be_loaded_fails_in_a_sentence(cluster, cohort, tmp_path) -> None:
    slides = find_slides([cohort])
    with pytest.raises(SacMILError, match="no such file"):
        extract_on_ray(slides, tmp_path / "out", "onnx:/nowhere.onnx", address=cluster)
    (tmp_path / "words.onnx").write_text("not a graph")
    (tmp_path / "words.onnx.json").write_text("{}")
    with pytest.raises(SacMILError, match=r"words\.onnx"):
        extract_on_ray(slides, tmp_path / "out", f"onnx:{tmp_path}/words.onnx", address=cluster)
    rows = extract_on_ray(slides, tmp_path / "out", "uni_v1", address=cluster)
    assert ["`weights`" in row.reason for row in rows] == [True] * 3


def run_here(factory, arguments, items, **_: Any) -> Iterator[TaskOutcome]:
    """What ``run_each_on_ray`` does, in this process; the actor of the last item is lost."""
    function = factory(*arguments)
    *first, last = enumerate(items)
    for key, item in first:
        yield TaskOutcome(key, function(item), None)
    yield TaskOutcome(last[0], None, "its node left")


@pytest.mark.usefixtures("inline_workers")
def test_actors_write_the_bags_of_the_local_engine_and_a_lost_one_is_a_failure(
    cohort, tmp_path, encoder, monkeypatch
) -> None:
    module = import_module("sacmil.extraction.extract_slides")
    monkeypatch.setattr(module, "run_each_on_ray", run_here)
    slides = find_slides([cohort])
    shared = {"settings": SETTINGS, "resources": RESOURCES}
    local = extract_slides(slides, tmp_path / "local", encoders=[load_encoder(encoder)], **shared)
    on_ray = extract_on_ray(slides, tmp_path / "ray", encoder, **shared)
    assert [row.status for row in on_ray] == ["done", "done", "failed"]
    assert (on_ray[2].reason, on_ray[2].encoder) == ("its node left", local[2].encoder)
    for one, other in zip(local[:2], on_ray[:2], strict=True):
        assert replace(one, seconds="") == replace(other, seconds="")
        assert (tmp_path / "local" / one.bag).read_bytes() == (
            tmp_path / "ray" / other.bag
        ).read_bytes()


def kill_an_actor(node: Any, killed: list[int]) -> None:
    """Kill the first busy actor, and note its process id."""
    killed.append(wait_for(lambda: busy_actors(node))[0])
    os.kill(killed[0], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.ray
def test_with_an_actor_killed_the_bags_are_those_of_the_local_engine(
    ray_cluster, cohort, tmp_path, encoder
) -> None:
    slides = find_slides([cohort])
    shared = {"settings": SETTINGS, "resources": RESOURCES}
    local = extract_slides(slides, tmp_path / "local", encoders=[load_encoder(encoder)], **shared)
    killer = threading.Thread(target=kill_an_actor, args=(ray_cluster.head_node, killed := []))
    killer.start()
    on_ray = extract_on_ray(
        slides, tmp_path / "ray", encoder, address=ray_cluster.address, **shared
    )
    killer.join()
    assert killed, "no actor was busy"
    assert {row.slide_id for row in on_ray} == {row.slide_id for row in local}
    assert [row.status for row in on_ray] == ["done"] * 3
    ours, theirs = bags(tmp_path / "local"), bags(tmp_path / "ray")
    assert set(ours) == set(theirs)
    for name, bag in ours.items():
        assert np.array_equal(bag.coords, theirs[name].coords)
        assert bag.provenance == theirs[name].provenance
        assert bag.encoder == theirs[name].encoder
        np.testing.assert_allclose(bag.features, theirs[name].features, atol=1e-3)
