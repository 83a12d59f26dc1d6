"""Captured steps are those of plain training, and give way where they cannot be.

Without a GPU a stand-in repeats the captured call at every replay, on the memory that it was
captured with. Tests marked ``gpu`` capture for real.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captured_memory import Memory
from torch import Tensor

from sacmil import Bag
from sacmil.kernels import cuda_graphs
from sacmil.kernels.cuda_graphs import GraphCache
from sacmil.models import MILModel, Recipe, Sample, create_model, list_models
from sacmil.models._recipe import Lookahead
from sacmil.models._registry import get_model_class
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.tasks import MultiLabel, Ordinal, Regression, Survival, Task
from sacmil.training import capture
from sacmil.training.capture import CapturingTrainer
from sacmil.training.checkpoint import Checkpoint, EpochMetrics
from sacmil.training.fit import fit
from sacmil.training.loading import SampleLoader
from sacmil.training.trainer import Trainer

LENGTHS = (90, 130, 90, 75, 90)
RECIPE = Recipe(optimizer="adamw", lr=1e-3, schedule="cosine", epochs=4, weight_decay=1e-2)
OPTIONS: dict[str, dict[str, Any]] = {"sac_mil": {"dim": 32, "k": 4}}
LONG_STEPS = ("hipt", "longnet", "mambamil", "mammil", "norma", "r2t", "transmil")
WAITING_MODELS = ("hipt",)
"""Read numbers from the GPU in the middle of a step."""


@pytest.fixture
def memory(monkeypatch) -> Memory:
    return Memory(monkeypatch)


def make_model(name: str, task: Task | None = None, device: str = "cpu") -> MILModel:
    torch.manual_seed(0)
    outputs = task.outputs if task else 2
    model = create_model(name, in_dim=16, num_classes=outputs, **OPTIONS.get(name, {}))
    if task:
        model.set_task(task)
    return model.to(device)


def make_bag(model: MILModel, number: int, *, resident: bool, device: str = "cpu") -> Sample:
    """Return one of five bags."""
    random, n = np.random.default_rng(number), LENGTHS[number]
    features = random.standard_normal((n, 16), dtype=np.float32)
    coords = make_tissue_coords(n, seed=number).astype(np.float64)
    plan = {key: torch.from_numpy(v).to(device) for key, v in model.plan(coords, features).items()}
    target = model.known_task.prepare(TARGETS[model.known_task.kind][number])
    tensors = (torch.from_numpy(x).to(device) for x in (features, coords))
    return Sample(*tensors, plan, target.to(device), resident)


TASKS: dict[str, Task] = {
    "regression": Regression(("age",)),
    "ordinal": Ordinal(("low", "mid", "high"), "grade"),
    "multilabel": MultiLabel(("er", "pr")),
    "survival": Survival("t", "e", bins=2, horizons=(3.0,), curve_times=(2.0, 4.0)),
}
TARGETS = {
    "classification": np.array([[0.0], [1], [0], [1], [1]]),
    "regression": np.array([[30.0], [41], [55], [62], [70]]),
    "ordinal": np.array([[0.0], [1], [2], [1], [0]]),
    "multilabel": np.array([[0.0, 1], [1, np.nan], [1, 0], [0, 0], [1, 1]]),
    "survival": np.array([[1.0, 1], [2, 1], [3, 0], [4, 1], [5, 1]]),
}


def fit_task(name: str) -> Task | None:
    return TASKS[name].fitted(TARGETS[name]) if name in TASKS else None


def train(
    trainer_class: type[Trainer],
    name: str,
    *,
    recipe: Recipe = RECIPE,
    task: Task | None = None,
    resident: bool = True,
    steps: int = 20,
    device: str = "cpu",
    precision: torch.dtype = torch.float32,
) -> tuple[list[float], list[Tensor], Trainer]:
    """Return losses, then weights and predictions, after some steps with random numbers."""
    model = make_model(name, task, device)
    bags = [make_bag(model, n, resident=resident, device=device) for n in range(len(LENGTHS))]
    trainer = trainer_class(model, recipe, task=task, precision=precision)
    torch.manual_seed(1)
    drawn = itertools.cycle(range(len(bags)))
    losses = []
    for step in range(steps):
        batch = [bags[next(drawn)] for _ in range(recipe.accumulate)]
        losses += [float(loss) for loss in trainer.step(batch, step / 5).values()]
        if step > steps - 3:
            predicted = [trainer.predict(bag).detach().cpu() for bag in bags]
    weights = [p.detach().cpu() for p in model.parameters()]
    return losses, [*weights, *predicted], trainer


def check_equal(found: tuple, expected: tuple, *, tolerance: float = 0.0) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance, atol=tolerance)
    for one, other in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


RECIPES = {
    "standard": RECIPE,
    "accumulate": RECIPE.replace(accumulate=3),
    "clip": RECIPE.replace(clip={"": 0.1}),
    "lookahead": RECIPE.replace(lookahead=Lookahead(steps=2), optimizer="radam"),
    "adam": RECIPE.replace(optimizer="adam", layer_decay=0.5, schedule="constant"),
}


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_replayed_steps_of_every_recipe_are_plain_ones(memory, recipe, resident) -> None:
    settings = {"recipe": RECIPES[recipe], "resident": resident}
    expected = train(Trainer, "abmil_gated", **settings)
    assert np.std(expected[0]) > 1e-3
    found = train(CapturingTrainer, "abmil_gated", **settings)
    check_equal(found, expected)
    assert memory.captures >= 5


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG_STEPS else ())
        for name in list_models()
    ],
)
def test_replayed_steps_of_every_model_are_plain_ones(memory, name: str) -> None:
    check_equal(train(CapturingTrainer, name), train(Trainer, name))
    assert memory.captures == 4 + 4  # steps, predictions


@pytest.mark.parametrize("task", TASKS)
def test_replayed_steps_of_every_task_are_plain_ones(memory, task: str) -> None:
    fitted = fit_task(task)
    found = train(CapturingTrainer, "sac_mil_near_far", task=fitted)
    check_equal(found, train(Trainer, "sac_mil_near_far", task=fitted))
    assert memory.captures == 4 + 4  # steps, predictions


def test_bags_of_one_shape_share_a_graph_and_the_first_that_stays_has_its_own(memory) -> None:
    trainer = train(CapturingTrainer, "abmil", resident=True)[2]
    assert len(trainer._graphs) == 4 + 4  # steps, predictions
    trainer = train(CapturingTrainer, "abmil", resident=False)[2]
    assert len(trainer._graphs) == 3 + 3


def test_parts_of_a_step_are_captured_by_themselves(memory) -> None:
    recipe = RECIPE.replace(accumulate=5)
    trainer = train(CapturingTrainer, "abmil", recipe=recipe)[2]
    assert len(trainer._graphs) == 4 + 4 + 1  # parts, predictions, the update


def test_a_model_that_waits_for_the_gpu_takes_plain_steps(memory) -> None:
    memory.obstacles.append("a step waits for the GPU")
    check_equal(train(CapturingTrainer, "abmil"), train(Trainer, "abmil"))
    assert not memory.captures


@pytest.mark.parametrize(
    "change", [{"instance_dropout": 0.3}, {"instance_dropout": 0.1, "accumulate": 2}]
)
def test_steps_whose_shapes_never_repeat_are_plain(memory, change) -> None:
    recipe = RECIPE.replace(**change)
    found = train(CapturingTrainer, "abmil", recipe=recipe)
    check_equal(found, train(Trainer, "abmil", recipe=recipe))
    assert not memory.captures


def test_a_loss_of_several_bags_takes_plain_steps(memory) -> None:
    task = Survival("t", "e", "cox", horizons=(3.0,), curve_times=(2.0,))
    task = task.fitted(TARGETS["survival"])
    recipe = RECIPE.replace(accumulate=5)
    found = train(CapturingTrainer, "abmil", task=task, recipe=recipe)
    check_equal(found, train(Trainer, "abmil", task=task, recipe=recipe))
    assert not memory.captures


@pytest.mark.parametrize(
    ("failure", "stops"),
    [
        (torch.OutOfMemoryError("out of memory"), False),
        (RuntimeError("operation not permitted when stream is capturing"), True),
    ],
)
def test_a_capture_that_fails_leaves_plain_steps(memory, failure, stops) -> None:
    memory.failure = failure
    found = train(CapturingTrainer, "abmil")
    check_equal(found, train(Trainer, "abmil"))
    assert bool(found[2].obstacle) == stops
    assert memory.tries == (3 if stops else memory.tries)
    assert not len(found[2]._graphs)


def test_graphs_used_least_recently_go_first(memory) -> None:
    memory.free = memory.total = 8  # a budget of four
    cache = GraphCache(torch.device("cpu"))
    for key in "abcd":
        cache.capture((key,), lambda own: {}, {})
    assert cache.get(("a",))
    cache.capture(("e",), lambda own: {}, {})
    assert cache.cost == 4
    assert [key for (key,) in cache._graphs] == ["c", "d", "a", "e"]


def test_one_graph_that_is_too_large_is_not_captured_again(memory) -> None:
    cache = GraphCache(torch.device("cpu"))
    cache._budget = 0
    assert cache.capture(("a",), lambda own: {}, {})
    cache._drop(("a",))
    assert not [cache.should_capture(("a",)) for _ in range(3)][-1]


def test_graphs_make_room_for_other_jobs(memory) -> None:
    cache = GraphCache(torch.device("cpu"))
    cache.capture(("a",), lambda own: {}, {})
    assert [cache.should_capture(("b",)) for _ in range(2)] == [False, True]
    memory.free = 20  # of 1000: another job took the rest
    assert not cache.should_capture(("b",))
    assert not len(cache)


def test_more_shapes_than_graphs_do_not_displace_each_other_at_once(memory, monkeypatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 3)
    monkeypatch.setattr(cuda_graphs, "STALE_REPLAYS", 12)
    cache = GraphCache(torch.device("cpu"))
    for _ in range(10):
        for key in range(5):
            if not cache.get((key,)) and cache.should_capture((key,)):
                cache.capture((key,), lambda own: {}, {})
    assert memory.captures == 3
    for _ in range(10):  # those of before are needed no more
        for key in range(8, 10):
            if not cache.get((key,)) and cache.should_capture((key,)):
                cache.capture((key,), lambda own: {}, {})
    assert {8, 9} <= {key for (key,) in cache._graphs}


# --- on a GPU

FOR_EVERY_TASK = [
    name
    for name in list_models()
    if name not in WAITING_MODELS and not get_model_class(name).needs_classes
]


@pytest.fixture
def fresh_gpu() -> Iterator[None]:
    """The GPU without what other tests left there."""
    torch.cuda.empty_cache()
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def train_both(name: str, **settings: Any) -> tuple[tuple, tuple]:
    """Train by replayed and by plain steps on a GPU."""
    found = train(CapturingTrainer, name, device="cuda", **settings)
    plain = train(PlainTrainer, name, device="cuda", **settings)
    return found, plain


class PlainTrainer(CapturingTrainer):
    """Takes plain steps, with the learning rate where captured steps have it."""

    def _find_obstacle(self) -> str:
        return "for comparison"


@pytest.fixture
def fixed_order(fresh_gpu) -> None:
    """Numbers are added in the same order in every step, at some cost."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("name", [name for name in list_models() if name not in WAITING_MODELS])
def test_captured_steps_of_every_model_have_the_same_bits(fixed_order, name: str) -> None:
    found, plain = train_both(name, steps=50)
    check_equal(found, plain)
    assert not found[2].obstacle
    assert len(found[2]._graphs) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mammil", "sac_mil_near_far", "transmil"])
def test_captured_losses_are_those_of_plain_steps_but_for_rounding(fresh_gpu, name: str) -> None:
    found, plain = train_both(name, steps=50)
    np.testing.assert_allclose(found[0], plain[0], rtol=2e-3, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("stop_after", [1, 5])
def test_training_that_was_stopped_ends_with_the_same_weights(fixed_order, tmp_path, stop_after):
    recipe = RECIPE.replace(epochs=8, monitor="last")
    random = np.random.default_rng(0)
    bags = {
        Path(str(n)): Bag(
            str(n),
            random.standard_normal((n, 16), dtype=np.float32),
            make_tissue_coords(n, seed=n) * 256,
            256,
        )
        for n in (60, 70, 80, 90)
    }

    def run(name: str, last: int | None = None) -> list[Tensor]:
        model = make_model("sac_mil_near_far", device="cuda")
        loader = SampleLoader(
            model, list(bags), [0, 1, 0, 1], device="cuda", cache="gpu", read=bags.__getitem__
        )

        def stop(line: EpochMetrics) -> None:
            if line.epoch == last:
                checkpoint.wait_for_write()
                raise KeyboardInterrupt

        checkpoint = Checkpoint(tmp_path / name)
        fit(model, loader, recipe, checkpoint=checkpoint, on_epoch=stop)
        checkpoint.wait_for_write()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("stopped", stop_after)
    for one, other in zip(run("stopped"), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_captured_steps_of_every_recipe_are_plain_ones(fresh_gpu, recipe, resident) -> None:
    settings = {"recipe": RECIPES[recipe], "resident": resident}
    check_equal(*train_both("abmil_gated", **settings), tolerance=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("name", FOR_EVERY_TASK)
@pytest.mark.parametrize("task", TASKS)
def test_captured_steps_of_every_task_have_the_same_bits(fixed_order, task, name) -> None:
    found, plain = train_both(name, task=fit_task(task), steps=50)
    check_equal(found, plain)
    assert len(found[2]._graphs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sac_mil_near_far", "transmil"])
def test_captured_steps_in_bfloat16_are_plain_ones(fresh_gpu, name: str) -> None:
    found, plain = train_both(name, precision=torch.bfloat16, steps=20)
    check_equal(found, plain, tolerance=2e-2)
    assert len(found[2]._graphs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", WAITING_MODELS)
def test_a_step_that_waits_is_found_and_never_captured(fresh_gpu, name: str) -> None:
    found, plain = train_both(name)
    np.testing.assert_allclose(found[0], plain[0], rtol=2e-3, atol=2e-3)
    assert "waits for the GPU" in found[2].obstacle
    assert not len(found[2]._graphs)


@pytest.mark.gpu
def test_training_goes_on_after_a_capture_that_failed(fresh_gpu, monkeypatch) -> None:
    @contextmanager
    def overlook(device: torch.device) -> Iterator[list[str]]:
        yield []

    monkeypatch.setattr(capture, "watch_obstacles", overlook)
    found = train(CapturingTrainer, "hipt", device="cuda", steps=20)
    monkeypatch.undo()
    plain = train(PlainTrainer, "hipt", device="cuda", steps=20)
    assert found[2].obstacle
    np.testing.assert_allclose(found[0], plain[0], rtol=2e-3, atol=2e-3)
    other = train(CapturingTrainer, "abmil", device="cuda")  # the pool is sound too
    check_equal(other, train(PlainTrainer, "abmil", device="cuda"), tolerance=1e-5)
    assert len(other[2]._graphs)


@pytest.mark.gpu
def test_many_shapes_take_no_more_memory_than_they_may(fresh_gpu, monkeypatch) -> None:
    model = make_model("sac_mil_near_far", device="cuda")
    trainer = CapturingTrainer(model, RECIPE)
    trainer._graphs._budget = 100e6
    free = torch.cuda.mem_get_info()[0]
    random = np.random.default_rng(0)
    for step in range(300):
        n = 500 + 7 * step
        coords = make_tissue_coords(n, seed=step).astype(np.float64)
        features = random.standard_normal((n, 16), dtype=np.float32)
        plan = {k: torch.from_numpy(v).cuda() for k, v in model.plan(coords, features).items()}
        tensors = (torch.from_numpy(x).cuda() for x in (features, coords))
        sample = Sample(*tensors, plan, torch.tensor(step % 2).cuda(), resident=True)
        for _ in range(2):
            trainer.step([sample])
    assert 0 < len(trainer._graphs) < 300
    assert trainer._graphs.cost <= 100e6
    assert free - torch.cuda.mem_get_info()[0] < 1e9


@pytest.mark.gpu
def test_out_of_memory_during_a_capture_leaves_plain_steps(fresh_gpu) -> None:
    recorded = GraphCache._record
    tries = []

    def run_out(cache: GraphCache, call, own):
        def call_and_fail(given: dict[str, Tensor]) -> dict[str, Tensor]:
            call(given)
            return {"": torch.empty(2**50, dtype=torch.uint8, device="cuda")}

        tries.append(own)
        return recorded(cache, call_and_fail, own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphCache, "_record", run_out)
        found = train(CapturingTrainer, "abmil", device="cuda")
    check_equal(found, train(PlainTrainer, "abmil", device="cuda"), tolerance=1e-5)
    assert tries
    assert not found[2].obstacle
