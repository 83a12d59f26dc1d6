"""``sacmil embed``."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sacmil as package
from sacmil import Bag, create_model, read_bag, save_model, write_bag

pytestmark = pytest.mark.usefixtures("inline_workers")


@pytest.fixture
def bags(tmp_path: Path, make_bag: Callable[..., Bag]) -> Path:
    for seed in range(3):
        bag = make_bag(20 + seed, 8, seed)
        write_bag(tmp_path / "bags" / f"{bag.slide_id}.h5", bag)
    return tmp_path / "bags"


def make_model(folder: Path, name: str) -> Path:
    save_model(folder, create_model(name, in_dim=8, num_classes=2), classes=("a", "b"))
    return folder


def test_every_bag_is_a_row_with_the_vector_of_embed(
    sacmil: Callable, tmp_path: Path, bags: Path
) -> None:
    folder, out = make_model(tmp_path / "model", "abmil"), tmp_path / "vectors.csv"
    done = sacmil("embed", folder, bags, "--out", out)
    assert done.code == 0, done.err
    assert "3 slides, 512 numbers each" in done.out
    header, *rows = csv.reader(out.read_text().splitlines())
    assert header == ["slide_id", *(f"e_{n}" for n in range(512))]
    model = package.load_model(folder)
    for name, *values in rows:
        expected = package.embed(model, read_bag(bags / f"{name}.h5"))
        np.testing.assert_array_equal(np.array(values, dtype=np.float32), expected)


def test_a_bag_that_fails_is_reported_and_the_others_are_written(
    sacmil: Callable, tmp_path: Path, bags: Path
) -> None:
    (bags / "slide-1.h5").write_bytes(b"damaged")
    out = tmp_path / "vectors.csv"
    done = sacmil("embed", make_model(tmp_path / "model", "abmil"), bags, "--out", out)
    assert done.code == 1
    assert "slide-1: failed" in done.err
    assert [row[0] for row in csv.reader(out.read_text().splitlines())][1:] == [
        "slide-0",
        "slide-2",
    ]


def test_a_model_without_an_embedding_writes_nothing(
    sacmil: Callable, tmp_path: Path, bags: Path
) -> None:
    out = tmp_path / "vectors.csv"
    done = sacmil("embed", make_model(tmp_path / "model", "max_pool"), bags, "--out", out)
    assert done.code == 1
    assert "max_pool has no slide embedding" in done.err
    assert not out.exists()


def test_the_models_of_a_run_are_not_mixed(sacmil: Callable, tmp_path: Path, bags: Path) -> None:
    for fold in range(2):
        make_model(tmp_path / "run" / "abmil" / "seed_0" / f"fold_{fold}", "abmil")
    done = sacmil("embed", tmp_path / "run" / "abmil", bags, "--out", tmp_path / "v.csv")
    assert done.code == 1
    assert "holds 2 models, whose embeddings cannot be compared" in done.err


def test_slides_are_rejected(sacmil: Callable, tmp_path: Path) -> None:
    (tmp_path / "a.svs").write_bytes(b"slide")
    model = make_model(tmp_path / "model", "abmil")
    done = sacmil("embed", model, tmp_path / "a.svs", "--out", tmp_path / "v.csv")
    assert done.code == 1
    assert "is a slide; expected bags" in done.err
