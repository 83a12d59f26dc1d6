"""Samples: where they stay, how often files are read, and that none of it changes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sacmil import Bag, create_model, read_bag, write_bag
from sacmil.errors import SacMILError
from sacmil.training.loading import SampleLoader, make_sample_loader

MODEL = {"in_dim": 4, "num_classes": 2, "dim": 8, "k": 4}


@pytest.fixture
def paths(tmp_path):
    random = np.random.default_rng(0)
    found = []
    for number in range(5):
        coords = np.stack([np.arange(10 + number), np.arange(10 + number) % 3], 1) * 256
        features = random.standard_normal((len(coords), 4)).astype(np.float16)
        found.append(tmp_path / f"{number}.h5")
        write_bag(found[-1], Bag(str(number), features, coords, 256))
    return found


class Counted:
    def __init__(self) -> None:
        self.read = []

    def __call__(self, path):
        self.read.append(path.stem)
        return read_bag(path)


def epochs(samples: SampleLoader, orders) -> list:
    return [[sample.features for sample in samples.iter_samples(order)] for order in orders]


ORDERS = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [3, 3, 1, 0, 2]]


@pytest.mark.parametrize(("cache", "reads"), [("memory", 1), ("gpu", 1), ("auto", 1), ("none", 3)])
def test_kept_bags_are_read_once_and_others_every_time(paths, cache, reads) -> None:
    counted = Counted()
    model = create_model("sac_mil", **MODEL)
    samples = SampleLoader(model, paths, [0, 1, 0, 1, 0], cache=cache, read=counted)
    seen = epochs(samples, ORDERS)
    for order, features in zip(ORDERS, seen, strict=True):
        for index, found in zip(order, features, strict=True):
            np.testing.assert_array_equal(found, read_bag(paths[index]).features)
    if reads == 1:
        assert sorted(counted.read) == ["0", "1", "2", "3", "4"]
    else:
        assert counted.read == [str(index) for order in ORDERS for index in order]


def test_plans_are_made_once_even_where_bags_are_read_again(paths) -> None:
    model = create_model("sac_mil", **MODEL)
    made = []
    plan = model.plan
    object.__setattr__(model, "plan", lambda *a: made.append(1) or plan(*a))
    samples = SampleLoader(model, paths, [0] * 5, cache="none")
    for order in ORDERS:
        for index, sample in zip(order, samples.iter_samples(order), strict=True):
            bag = read_bag(paths[index])
            for key, value in plan(bag.patch_coords, bag.features).items():
                np.testing.assert_array_equal(sample.plan[key], value)
    assert len(made) == 5


def test_bags_too_large_for_memory_are_not_kept(paths, monkeypatch) -> None:
    model = create_model("sac_mil", **MODEL)
    monkeypatch.setattr("sacmil.training.loading._free_memory", lambda: 1000.0)
    assert SampleLoader(model, paths, [0] * 5).cache == "none"
    monkeypatch.setattr("sacmil.training.loading._free_memory", lambda: 1e9)
    assert SampleLoader(model, paths, [0] * 5).cache == "memory"


def test_a_bag_that_cannot_be_read_is_named(paths) -> None:
    paths[3].write_bytes(b"nonsense")
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5)
    with pytest.raises(SacMILError, match=r"3\.h5"):
        list(samples)


def test_leaving_an_epoch_early_leaves_no_thread_behind(paths) -> None:
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5, cache="none")
    walk = samples.iter_samples(range(5))
    next(walk)
    walk.close()
    assert [len(sample.features) for sample in samples] == [10, 11, 12, 13, 14]


def test_bags_in_memory_need_no_files() -> None:
    bags = [Bag("same id", np.full((3, 4), n, np.float32), np.eye(3, 2) * 9, 1) for n in range(3)]
    samples = make_sample_loader(create_model("sac_mil", **MODEL), bags, [0, 1, 1])
    assert [float(sample.features[0, 0]) for sample in samples] == [0, 1, 2]
    assert [int(sample.target) for sample in samples] == [0, 1, 1]
    assert all(sample.features.device == torch.device("cpu") for sample in samples)
