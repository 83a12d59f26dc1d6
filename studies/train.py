"""What a worker does with a job: ``sacmil.training.fit`` trains, the test set is predicted once."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sacmil.atomic import atomic_write
from sacmil.evaluation.localization import measure_localization
from sacmil.metrics.classification import METRICS, auc
from sacmil.models import MILModel, Recipe, Sample, create_model
from sacmil.plans import make_plan
from sacmil.tasks import Survival, Task
from sacmil.training.fit import fit, predict_samples
from sacmil.training.loading import SampleLoader
from studies.classical import BASELINES, BaselineModel
from studies.data import (
    ALL_TILES,
    PARTS,
    Place,
    Slide,
    Slides,
    divide_slides,
    load_slides,
    read_cohort_file,
    write_cohort_file,
)
from studies.study import Job, make_digest

MAX_CACHED_BYTES = 3e9
"""Of features that stay with a worker: sixteen workers share a device."""

Plan = dict[str, npt.NDArray[Any]]


class ReadySamples(SampleLoader):
    """Samples that are on the device already."""

    def __init__(self, samples: Sequence[Sample], targets: Sequence[Any], device: str) -> None:
        self._samples = samples
        self.targets = np.array(targets, dtype=np.float64).reshape(len(samples), -1)
        self.device = torch.device(device)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """(bags,), the class of each."""
        return self.targets[:, 0].astype(np.int64)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def iter_samples(self, indices: Iterable[int]) -> Iterator[Sample]:
        """Yield samples in order."""
        return (self._samples[int(index)] for index in indices)


def run_job(job: Job, place: Place) -> dict[str, Any]:
    """Train and test a model; return its figures and, for a run, its predictions."""
    began = time.monotonic()
    _prepare_torch(place.device)
    loaded = _load_cached(job, place)
    slides, parts = loaded.slides, divide_slides(loaded.slides, job.data, job.fold)
    task = _fit_task(job, loaded, parts["train"])
    torch.manual_seed(job.seed)
    model = make_model(job, slides[0].bag.dim, task).to(place.device)
    samples = _make_samples(job, loaded, parts, place, model.known_task)
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    if isinstance(model, BaselineModel):
        model.fit_to(samples["train"])
    else:
        found |= _train(job, place, model, samples)
    if job.role == "run":
        found |= (_test_survival if task else _test)(model, samples, slides, parts)
    return found | {
        "oracle": loaded.oracle,
        "seconds": time.monotonic() - began,
        "device": _get_device_name(place.device),
        "torch": torch.__version__,
    }


def make_model(job: Job, in_dim: int, task: Task | None = None) -> MILModel:
    """Return the untrained model of a job."""
    outputs = task.outputs if task else 2
    if job.zoo_model in BASELINES:
        model: MILModel = BASELINES[job.zoo_model](in_dim=in_dim, num_classes=outputs)
    else:
        model = create_model(job.zoo_model, in_dim=in_dim, num_classes=outputs, **job.options)
    if task:
        model.set_task(task)
    return model


def _fit_task(job: Job, loaded: Slides, numbers: Sequence[int]) -> Task | None:
    """Return the task with what it learns from the training set; None for classes."""
    if loaded.task is None:
        return None
    task = loaded.task
    if isinstance(task, Survival) and job.zoo_model in BASELINES:
        task = replace(task, loss_name="cox")
    return task.fitted(np.array([loaded.slides[n].targets for n in numbers]))


def free_memory() -> None:
    """Leave the device to other workers: captured steps hold much of it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


_CACHED: OrderedDict[str, Slides] = OrderedDict()


def _load_cached(job: Job, place: Place) -> Slides:
    name = _name_slides(job)
    if name not in _CACHED:
        _CACHED[name] = _load_or_make(job, name, place)
        while len(_CACHED) > 1 and sum(map(_count_bytes, _CACHED.values())) > MAX_CACHED_BYTES:
            _CACHED.popitem(last=False)
    _CACHED.move_to_end(name)
    return _CACHED[name]


def _load_or_make(job: Job, name: str, place: Place) -> Slides:
    """Read or make the slides; a synthetic cohort is kept on disk for other workers."""
    path = place.scratch / "cohorts" / f"{name}.npz"
    if path.exists():
        return read_cohort_file(path)
    slides = load_slides(job.data, job.fold, place)
    if job.data["synthetic"]:
        write_cohort_file(path, slides)
    return slides


def _name_slides(job: Job) -> str:
    """Return the same name for jobs with the same slides, however they are divided."""
    data = {**job.data, "folds": 0, "validation": 0}
    return make_digest([data, job.fold if job.data["synthetic"] else 0])


def _count_bytes(slides: Slides) -> int:
    return sum(slide.bag.features.nbytes for slide in slides.slides)


# --- samples --------------------------------------------------------------------------------------


def _make_samples(
    job: Job,
    loaded: Slides,
    parts: Mapping[str, Sequence[int]],
    place: Place,
    task: Task,
) -> dict[str, ReadySamples]:
    slides = loaded.slides
    plans = _load_plans(job, slides, place.scratch)
    center = (lambda values: values) if job.data["synthetic"] else _fit_center(slides, parts)

    def make(number: int) -> Sample:
        slide, device = slides[number], place.device
        features = torch.from_numpy(center(slide.bag.features)).half().to(device)
        coords = torch.from_numpy(slide.bag.patch_coords).to(device)
        plan = {key: torch.from_numpy(value).to(device) for key, value in plans[number].items()}
        target = task.prepare(np.array(_get_targets(slide))).to(device)
        return Sample(features, coords, plan, target, resident=True)

    return {
        part: ReadySamples(
            [make(number) for number in numbers],
            [_get_targets(slides[number]) for number in numbers],
            place.device,
        )
        for part, numbers in parts.items()
        if part != "val" or numbers
    }


def _get_targets(slide: Slide) -> tuple[float, ...]:
    return slide.targets or (float(slide.label),)


def _fit_center(
    slides: Sequence[Slide], parts: Mapping[str, Sequence[int]]
) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return a function that moves features to the mean of the training set, one in scale."""
    known = np.concatenate([slides[n].bag.features for n in parts["train"]]).astype(np.float32)
    mean = known.mean(0)
    scale = max(float(np.sqrt(np.square(known - mean).mean())), 1e-6)
    return lambda values: (values.astype(np.float32) - mean) / scale


def _load_plans(job: Job, slides: Sequence[Slide], scratch: Path) -> list[Plan]:
    """Return the plans of all slides; models that plan alike share them on disk."""
    with torch.device("meta"):
        planner = make_model(job, 8).planner
    name = make_digest([_name_slides(job), job.order or [planner.name, dict(planner.options)]])
    path = scratch / "plans" / f"{name}.npz"
    if path.exists():
        return _read_plans(path, len(slides))
    make = _ORDERS.get(job.order) or (
        lambda coords, features: make_plan(planner.name, planner.options, coords, features)
    )
    bags = [slide.bag for slide in slides]
    plans = [make(bag.patch_coords, bag.features.astype(np.float32)) for bag in bags]
    arrays: dict[str, Any] = {
        f"{number}/{key}": value for number, plan in enumerate(plans) for key, value in plan.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)
    return plans


def _read_plans(path: Path, count: int) -> list[Plan]:
    plans: list[Plan] = [{} for _ in range(count)]
    with np.load(path) as held:
        for entry in held.files:
            number, _, key = entry.partition("/")
            plans[int(number)][key] = held[entry]
    return plans


def _order_by_rows(coords: npt.NDArray[Any], features: npt.NDArray[Any]) -> Plan:
    """Row by row, as most files list their tiles."""
    return {"order": np.lexsort((coords[:, 0], coords[:, 1]))}


def _order_at_random(coords: npt.NDArray[Any], features: npt.NDArray[Any]) -> Plan:
    return {"order": np.random.default_rng(len(coords)).permutation(len(coords))}


_ORDERS = {"raster": _order_by_rows, "random": _order_at_random}


# --- training and testing -------------------------------------------------------------------------


def _train(
    job: Job, place: Place, model: MILModel, samples: Mapping[str, ReadySamples]
) -> dict[str, Any]:
    fitted = fit(
        model,
        samples["train"],
        Recipe(**job.recipe),
        validation=samples.get("val"),
        seed=job.seed,
    )
    last_stage = [line for line in fitted.history if line.stage == fitted.history[-1].stage]
    best = next(line for line in last_stage if line.epoch == fitted.best_epoch)
    return {
        "epochs": len(fitted.history),
        "best_epoch": fitted.best_epoch,
        "val_auc": best.val_metric,
        "val_loss": best.val_loss,
    }


def _test(
    model: MILModel,
    samples: Mapping[str, ReadySamples],
    slides: Sequence[Slide],
    parts: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    probabilities = predict(model, samples["test"])
    labels = samples["test"].labels
    tested = [slides[number] for number in parts["test"]]
    located = ALL_TILES if ALL_TILES in parts else "test"
    localization = _localize(model, samples[located], [slides[n] for n in parts[located]])
    longer = {
        part: auc(samples[part].labels, predict(model, samples[part])[:, 1])
        for part in parts
        if part not in (*PARTS, ALL_TILES)
    }
    return {
        "auc": auc(labels, probabilities[:, 1]),
        "accuracy": METRICS["accuracy"](labels, probabilities),
        "log_loss": METRICS["log_loss"](labels, probabilities),
        "localization": localization.pop("auc", float("nan")),
        "further": localization | longer,
        "predictions": [
            [slide.bag.slide_id, slide.patient, slide.label, *values]
            for slide, values in zip(tested, probabilities.tolist(), strict=True)
        ],
    }


def _test_survival(
    model: MILModel,
    samples: Mapping[str, ReadySamples],
    slides: Sequence[Slide],
    parts: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Predict times, as ``sacmil.training`` does after a fold."""
    outputs: list[npt.NDArray[Any]] = []
    train, test = samples["train"], samples["test"]
    task = model.known_task
    predict_samples(
        model, train, task=task, on_output=lambda one: outputs.append(one.logits.cpu().numpy())
    )
    patients = [slides[number].patient for number in parts["train"]]
    task = task.calibrated(np.stack(outputs).astype(np.float64), train.targets, patients)
    values = np.asarray(predict_samples(model, test, task=task), dtype=np.float64)
    tested = [slides[number] for number in parts["test"]]
    return {
        "further": {task.headline: task.get_metric(task.headline).compute(test.targets, values)},
        "task_card": asdict(task.card),
        "predictions": [
            [slide.bag.slide_id, slide.patient, list(slide.targets), *own]
            for slide, own in zip(tested, values.tolist(), strict=True)
        ],
    }


def predict(model: MILModel, samples: ReadySamples) -> npt.NDArray[np.float64]:
    """Return (n, 2) probabilities; the larger is one minus the smaller, so that none are equal."""
    found = np.asarray(predict_samples(model, samples), dtype=np.float64)
    smaller = np.maximum(found.min(1), np.finfo(np.float32).tiny)
    is_positive = found[:, 1] > found[:, 0]
    positive = np.where(is_positive, 1 - smaller, smaller)
    return np.stack([np.where(is_positive, smaller, 1 - smaller), positive], axis=1)


@torch.inference_mode()
def _localize(model: MILModel, samples: ReadySamples, slides: Sequence[Slide]) -> dict[str, float]:
    """Return whether positive instances score high, over slides that have both kinds."""
    model.eval()
    scores, truths = {}, {}
    for slide, sample in zip(slides, samples, strict=True):
        truth = slide.bag.labels
        if truth is None or not ((truth > 0).any() and (truth == 0).any()):
            continue
        output = model(*sample[:3])
        own = output.scores if output.class_scores is None else output.class_scores[:, -1]
        scores[slide.bag.slide_id] = own.float().cpu().numpy()
        truths[slide.bag.slide_id] = truth
    if not scores:
        return {}
    found = measure_localization(scores, truths)
    return {
        "auc": found.auc,
        "localisation_ap": found.average_precision,
        "localisation_pooled": found.pooled_auc,
        "localisation_slides": found.slides,
    }


def _prepare_torch(device: str) -> None:
    if device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.set_float32_matmul_precision("high")


def _get_device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
