"""Samples: where they stay, how often files are read, and that none of it changes them."""

from __future__ import annotations

import h5py
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


@pytest.fixture
def memory(monkeypatch):
    """Bytes of free memory, as far as the loader can see."""
    free = {"bytes": 1e12}
    monkeypatch.setattr("sacmil.training.loading.find_free_memory", lambda: free["bytes"])
    return free


def check_epochs(samples: SampleLoader, paths) -> None:
    for order, features in zip(ORDERS, epochs(samples, ORDERS), strict=True):
        for index, found in zip(order, features, strict=True):
            np.testing.assert_array_equal(found, read_bag(paths[index]).features)


@pytest.mark.parametrize("cache", ["memory", "gpu", "auto", "none"])
def test_every_bag_goes_through_its_layout_once(paths, memory, cache) -> None:
    counted = Counted()
    model = create_model("sac_mil", **MODEL)
    samples = SampleLoader(model, paths, [0, 1, 0, 1, 0], cache=cache, read=counted)
    check_epochs(samples, paths)
    assert sorted(counted.read) == ["0", "1", "2", "3", "4"]


def test_bags_that_stay_need_no_files(paths, memory) -> None:
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5, cache="memory")
    seen = epochs(samples, ORDERS[:1])[0]
    for path in paths:
        path.unlink()
    for index, again in zip(ORDERS[1], epochs(samples, ORDERS[1:2])[0], strict=True):
        assert torch.equal(again, seen[index])


@pytest.mark.parametrize("chunks", [None, (3, 4)])
def test_other_layouts_are_read_again_too(tmp_path, memory, chunks) -> None:
    path, features = tmp_path / "slide.h5", np.random.default_rng(0).random((10, 4), "f4")
    with h5py.File(path, "w") as file:
        options = {"chunks": chunks, "compression": "gzip"} if chunks else {}
        file.create_dataset("features", data=features, **options)
        file.create_dataset("coords", data=np.stack([np.arange(10), np.zeros(10, int)], 1) * 256)
        file["coords"].attrs.update({"patch_size": 256, "patch_size_level0": 256, "overlap": 0})
    samples = SampleLoader(create_model("sac_mil", **MODEL), [path], [1], cache="none")
    for _ in range(3):
        np.testing.assert_array_equal(samples[0].features, features)


def test_what_fits_stays_and_the_rest_is_read_again(paths, memory) -> None:
    counted = Counted()
    model = create_model("sac_mil", **MODEL)
    size = SampleLoader(model, paths, [0] * 5)._load(0).packed.block.nbytes
    memory["bytes"] = 4.5 * size  # a half of it for bags: two
    samples = SampleLoader(model, paths, [0] * 5, cache="memory", read=counted)

    def read(path):
        memory["bytes"] = (4.5 - len(samples._cache._kept)) * size
        return counted(path)

    samples._read = read
    check_epochs(samples, paths)
    assert len(samples._cache._kept) == 2
    assert len(counted.read) == 5


@pytest.mark.parametrize(("cache", "kept"), [("auto", 0), ("memory", 5)])
def test_without_knowing_the_free_memory_bags_stay_where_the_option_says(
    paths, memory, cache, kept
) -> None:
    memory["bytes"] = 0.0
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5, cache=cache)
    list(samples)
    assert len(samples._cache._kept) == kept


def test_a_bag_that_another_one_replaces_during_training_is_an_error(paths, memory) -> None:
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5, cache="none")
    list(samples)
    paths[2].write_bytes(paths[3].read_bytes())
    with pytest.raises(SacMILError, match=r"2\.h5: has changed since training began: found 13 x 4"):
        list(samples)


def test_a_bag_that_was_copied_again_is_read_again(paths, memory) -> None:
    counted = Counted()
    samples = SampleLoader(
        create_model("sac_mil", **MODEL), paths, [0] * 5, cache="none", read=counted
    )
    first = [sample.features for sample in samples]
    paths[2].write_bytes(paths[2].read_bytes())
    for _ in range(2):
        for one, other in zip(first, samples, strict=True):
            assert torch.equal(one, other.features)
    assert counted.read == ["0", "1", "2", "3", "4", "2"]


def test_reading_once_keeps_nothing(paths, memory) -> None:
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5, read_once=True)
    assert [len(sample.features) for sample in samples] == [10, 11, 12, 13, 14]
    assert not samples._cache._kept
    assert not samples._known


def test_little_is_read_ahead_where_bags_are_large(paths, memory, monkeypatch) -> None:
    samples = SampleLoader(create_model("sac_mil", **MODEL), paths, [0] * 5, cache="none")
    assert samples._has_room(1, [0], 4)
    assert samples._has_room(2, [0, 1], 4)
    assert not samples._has_room(3, [0, 1, 2], 1)
    monkeypatch.setattr("sacmil.training.loading._READ_AHEAD_BYTES", 1000)
    assert samples._has_room(1, [0], 4)
    assert not samples._has_room(2, [0, 1], 4)


def test_plans_are_made_once_even_where_bags_are_read_again(paths, memory, monkeypatch) -> None:
    monkeypatch.setattr("sacmil.training.loading._MAX_PLANS_IN_MEMORY", 300)  # the rest: in a file
    model = create_model("sac_mil", **MODEL)
    made = []
    plan = model.plan
    object.__setattr__(model, "plan", lambda *a: made.append(1) or plan(*a))
    samples = SampleLoader(model, paths, [0, 1, 0, 1, 1], cache="none")
    for order in ORDERS:
        for index, sample in zip(order, samples.iter_samples(order), strict=True):
            bag = read_bag(paths[index])
            for key, value in plan(bag.patch_coords, bag.features).items():
                np.testing.assert_array_equal(sample.plan[key], value)
            np.testing.assert_array_equal(sample.coords, bag.patch_coords)
            assert float(sample.target) == [0, 1, 0, 1, 1][index]
    assert len(made) == 5


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


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["auto", "memory", "none"])
def test_bags_reach_a_busy_gpu_unchanged(tmp_path, cache) -> None:
    random = np.random.default_rng(0)
    found, expected = [], []
    for number in range(12):
        features = random.standard_normal((3000 + 400 * number, 256)).astype(np.float16)
        coords = np.stack([np.arange(len(features)), np.arange(len(features)) % 60], 1) * 256
        found.append(tmp_path / f"{number}.h5")
        write_bag(found[-1], Bag(str(number), features, coords, 256))
        expected.append(features)
    model = create_model("sac_mil", in_dim=256, num_classes=2, dim=8, k=4)
    samples = SampleLoader(model, found, [0] * 12, cache=cache, device="cuda")
    busy = torch.randn(4096, 4096, device="cuda")
    for epoch in range(4):
        order = random.permutation(12)
        sums = []
        for sample in samples.iter_samples(order):
            busy = (busy @ busy).clamp(-1, 1)  # the copy of the next bag must not come too early
            sums.append(sample.features.double().sum() + sample.plan["order"].sum())
            assert sample.resident == (cache == "auto")
        for index, value in zip(order, sums, strict=True):
            n = len(expected[index])
            wanted = expected[index].astype(np.float64).sum() + n * (n - 1) / 2
            assert float(value) == pytest.approx(wanted, rel=1e-9), epoch
