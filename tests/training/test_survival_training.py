"""Survival in training: Cox with one bag in memory, and nothing learned from a test set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exhaustive import choose_count, mostly_slow
from small_models import make_model
from target_cohort import make_trial
from torch import Tensor

from sacmil import list_models
from sacmil.card import read_card
from sacmil.evaluation.summary import summarize
from sacmil.metrics.survival import harrell_c
from sacmil.models import Recipe, Sample
from sacmil.models._base import MILModel
from sacmil.models._registry import get_model_class
from sacmil.results import Predictions
from sacmil.tasks import Survival
from sacmil.tasks.survival import cox_loss
from sacmil.training.fit import _iter_batches, _spread_strata
from sacmil.training.loading import SampleLoader
from sacmil.training.trainer import Trainer

DISCRETE = Survival("months", "death", horizons=(10,), curve_times=(5, 10, 20, 40))
COX = replace(DISCRETE, loss_name="cox")
FORMS = {"discrete": DISCRETE, "cox": COX}


def draw_targets(seed: int, patients: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    times = np.round(random.exponential(15, patients) + 0.1, 1)
    return np.stack([times, random.random(patients) < 0.6], axis=1).astype(float)


def make_samples(task: Survival, patients: int, model: MILModel, seed: int = 0) -> list[Sample]:
    targets = draw_targets(seed, patients)
    trial = make_trial(task, targets=targets, seed=seed)
    paths = [Path(slide_id) for slide_id in trial.cohort.by_id]
    loader = SampleLoader(model, paths, targets, task=task, cache="none", read=trial.bags)
    return list(loader)


class ReadAnew:
    """Samples that exist only while they are computed; remembers how often each was read."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples, self.reads = samples, 0

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.samples:
            self.reads += 1
            yield sample._replace(features=sample.features.clone())


def compute_full_batch(model: MILModel, samples: list[Sample], task: Survival) -> list[Tensor]:
    """Gradients of the loss with the graphs of all bags in memory at once."""
    model.train()
    outputs = [model(s.features, s.coords, s.plan).logits for s in samples]
    prepared = torch.stack([sample.target for sample in samples])
    loss = cox_loss(torch.stack(outputs)[:, 0], prepared[:, 0], prepared[:, 1], task.ties)
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("name", ["abmil", "sac_mil_near_far", "transmil"])
def test_two_passes_give_the_gradient_of_the_full_batch(name: str, ties: Any) -> None:
    """Dropout is on, so that both passes need the same random numbers."""
    task = replace(COX, ties=ties)
    model = make_model(name, num_classes=1)
    model.set_task(task)
    samples = make_samples(task, 12, model)
    model.double()
    samples = [s._replace(features=s.features.double(), coords=s.coords.double()) for s in samples]
    torch.manual_seed(5)
    expected = compute_full_batch(model, samples, task)
    trainer = Trainer(model, Recipe(optimizer="adam", lr=0.0), task=task)
    torch.manual_seed(5)
    batch = ReadAnew(samples)
    trainer.step(batch)
    assert batch.reads == 2 * len(samples)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)


def test_only_one_bag_has_a_graph_at_a_time() -> None:
    model = make_model("abmil", num_classes=1)
    model.set_task(COX)
    samples = make_samples(COX, 10, model)
    alive: set[int] = set()
    most = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal most
        alive.add(id(tensor))
        most = max(most, len(alive))
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        alive.discard(id(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        Trainer(model, Recipe(), task=COX).step(samples[:2])
        of_two = most
        most = 0
        alive.clear()
        Trainer(model, Recipe(), task=COX).step(samples)
    assert most <= of_two + 8 * 10  # the loss itself keeps a few numbers per bag


class DrawnOnGpu:
    """Long bags on the GPU that exist only while they are computed."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets.cuda()

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[Sample]:
        coords = torch.arange(40_000, device="cuda").reshape(-1, 2)
        for target in self.targets:
            yield Sample(torch.randn(20_000, 6, device="cuda"), coords, {}, target)


@pytest.mark.gpu
def test_a_step_over_many_bags_takes_the_memory_of_two() -> None:
    model = make_model("abmil", num_classes=1, in_dim=6)
    model.set_task(COX)
    trainer = Trainer(model.cuda(), Recipe(), task=COX)
    peaks = []
    for patients in (2, 2, 32):  # the first makes the optimizer's state
        torch.cuda.reset_peak_memory_stats()
        trainer.step(DrawnOnGpu(torch.tensor([[n + 1.0, 1.0] for n in range(patients)])))
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[2] < 1.05 * peaks[1]


def test_a_batch_without_an_event_is_no_step() -> None:
    model = make_model("abmil", num_classes=1)
    model.set_task(COX)
    samples = make_samples(COX, 6, model)
    before = [parameter.clone() for parameter in model.parameters()]
    censored = [s._replace(target=torch.tensor([float(s.target[0]), 0.0])) for s in samples]
    losses = Trainer(model, Recipe(weight_decay=0.1), task=COX).step(censored)
    assert losses["all"] == 0
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


@pytest.mark.parametrize("name", list_models())
def test_models_with_losses_of_their_own_refuse_cox_in_a_sentence(name: str) -> None:
    model = make_model(name, num_classes=1)
    has_own = type(model).losses is not MILModel.losses or get_model_class(name).needs_classes
    assert bool(model.explain_unsupported(COX)) == bool(has_own)


def test_batches_are_even_and_share_the_events() -> None:
    targets = draw_targets(0, 100)
    model = make_model("abmil", num_classes=1)
    trial = make_trial(COX, targets=targets)
    paths = [Path(slide_id) for slide_id in trial.cohort.by_id]
    loader = SampleLoader(model, paths, targets, task=COX, cache="none", read=trial.bags)
    batches = list(_iter_batches(loader, Recipe(), COX, np.random.default_rng(0)))
    assert [len(batch) for _, batch in batches] == [34, 33, 33]
    counts = [sum(float(s.target[1]) for s in batch) for _, batch in batches]
    assert max(counts) - min(counts) <= 2


def test_the_order_of_bags_is_a_permutation_and_random() -> None:
    strata = np.repeat([0, 1, 2], [50, 5, 2])
    orders = [_spread_strata(strata, np.random.default_rng(seed)) for seed in range(50)]
    assert all(sorted(order) == list(range(57)) for order in orders)
    firsts = {order[0] for order in orders}
    assert len(firsts) > 20


@pytest.mark.parametrize("form", FORMS)
def test_bins_and_baseline_change_only_with_the_training_patients(
    tmp_path: Path, form: str
) -> None:
    targets = draw_targets(0, 40)
    trial = make_trial(FORMS[form], targets=targets)
    trial.run(tmp_path / "a", epochs=1)
    tested = {slide_id for slide_id in trial.folds[0].test}
    changed = targets.copy()
    for number, slide in enumerate(trial.cohort.slides):
        if slide.slide_id in tested:
            changed[number] = [targets[number, 0] * 3 + 1, 1 - targets[number, 1]]
    other = make_trial(FORMS[form], targets=changed, shown=targets)
    other.folds[:] = trial.folds
    other.run(tmp_path / "b", epochs=1)
    learned = [read_card(tmp_path / name).task["settings"]["learned"] for name in "ab"]
    assert learned[0] == learned[1]
    train = {slide_id for slide_id in trial.folds[0].train}
    for number, slide in enumerate(trial.cohort.slides):
        if slide.slide_id in train:
            changed[number, 0] *= 2
    third = make_trial(FORMS[form], targets=changed, shown=targets)
    third.folds[:] = trial.folds
    third.run(tmp_path / "c", epochs=1)
    assert read_card(tmp_path / "c").task["settings"]["learned"] != learned[0]


def test_rows_of_the_training_set_are_in_the_table_and_their_median_is_the_cut(
    tmp_path: Path,
) -> None:
    trial = make_trial(DISCRETE, targets=draw_targets(0, 40))
    found = trial.run(tmp_path / "run", epochs=2)
    assert set(found.split.tolist()) == {"train", "test"}  # monitor=last joins train and val
    train = found.select(found.split == "train")
    is_high = train.values[:, 1] > 0.5
    np.testing.assert_array_equal(is_high, train.values[:, 0] > np.median(train.values[:, 0]))


# --- pure noise ----------------------------------------------------------------------------------


def run_noise(
    folder: Path, form: str, monitor: str, seeds: int, patients: int
) -> list[Predictions]:
    """Cross-validations in which features say nothing about survival."""
    found = []
    for seed in range(seeds):
        trial = make_trial(FORMS[form], targets=draw_targets(seed, patients), signal=0, seed=seed)
        settings: dict[str, Any] = {"epochs": 6, "monitor": monitor, "lr": 3e-2}
        runs = [
            trial.run(folder / f"{seed}-{fold}", fold=fold, seed=seed, **settings)
            for fold in range(2)
        ]
        found.append(Predictions.concatenate(runs))
    return found


def measure(runs: list[Predictions], split: str) -> tuple[float, float]:
    """Mean of the pooled c over runs, and its standard error."""
    values = []
    for run in runs:
        rows = replace(run, split=np.where(run.split == split, "test", "other"))
        chosen = rows.select(rows.split == "test")
        values.append(summarize(chosen, metrics="c", draws=1)["mean_pool"]["c"].mean)
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


@pytest.mark.parametrize("form", mostly_slow(FORMS, "discrete"))
def test_noise_gives_chance_on_test_patients_and_not_on_those_that_taught(
    tmp_path: Path, form: str
) -> None:
    runs = run_noise(tmp_path, form, "val_metric", seeds=8, patients=48)
    tested, error = measure(runs, "test")
    assert abs(tested - 0.5) < 3 * error + 0.005
    taught, _ = measure(runs, "train")
    assert taught > 0.55, "a leak of this kind is what the test must notice"


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["val_metric", "last"])
@pytest.mark.parametrize("form", FORMS)
def test_noise_gives_chance_over_many_seeds(tmp_path: Path, form: str, monitor: str) -> None:
    seeds = choose_count(60, sample=8)
    runs = run_noise(tmp_path, form, monitor, seeds=seeds, patients=80)
    tested, error = measure(runs, "test")
    assert abs(tested - 0.5) < 3 * error
    intervals = [summarize(run, metrics="c", draws=400)["mean_pool"]["c"] for run in runs]
    covered = np.mean([one.low <= 0.5 <= one.high for one in intervals])
    assert covered > 0.95 - 3 * math.sqrt(0.95 * 0.05 / seeds)


@pytest.mark.parametrize("form", FORMS)
def test_a_signal_is_learned(tmp_path: Path, form: str) -> None:
    random = np.random.default_rng(0)
    risk = random.standard_normal(80)
    times = np.round(random.exponential(20 * np.exp(-2 * risk)) + 0.1, 1)
    targets = np.stack([times, (random.random(80) < 0.7) * 1.0], axis=1)
    shown = np.stack([risk, risk], axis=1)
    trial = make_trial(FORMS[form], targets=targets, shown=shown)
    found = trial.run(tmp_path / "run", epochs=20, lr=1e-2)
    tested = found.select(found.split == "test")
    assert harrell_c(*tested.targets.T, tested.values[:, 0]) > 0.7
    assert (np.diff(tested.values[:, 2:], axis=1) <= 1e-7).all()
