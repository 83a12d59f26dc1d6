"""What a worker does with a job: bags and plans stay on the GPU, sacmil.training does the rest.

Many small runs share one GPU, a process each, and replay recorded steps.
"""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import Tensor

from benchmarks.accuracy._bags import Bags, load_bags, read_bags, save_bags
from benchmarks.accuracy._darkness import DARKNESS
from benchmarks.accuracy._job import Job, Source, digest
from benchmarks.accuracy._models import model_of
from benchmarks.accuracy._parts import parts_of
from benchmarks.accuracy._plans import make_plans, plan_name, read_plans
from benchmarks.accuracy._replay import ReplayTrainer
from sacmil.evaluation.localization import measure_localization
from sacmil.evaluation.metrics import METRICS, auc
from sacmil.models import MILModel, Recipe, Sample
from sacmil.models._registry import update_keys
from sacmil.training.fit import fit, predict_samples
from sacmil.training.loading import SampleLoader
from sacmil.training.trainer import Trainer

KEPT_BYTES = 3e9
"""Of bags that stay on the device of a worker: sixteen of them share it."""
KEPT_PLANS = 6
"""For each source."""
NOT_RECORDED = ("clam_sb", "clam_mb", "hipt")
"""Models that ask the GPU for numbers in the middle of a step, which cannot be recorded then."""

Scores = npt.NDArray[np.float32]
"""Of the instances of a bag."""


@dataclass(frozen=True)
class Place:
    """Where jobs are done."""

    scratch: Path
    """What workers share: bags and plans, each made once."""
    device: str = "cpu"
    features: Path | None = None
    outlines: Path | None = None


def make_bags(source: Source, place: Place) -> None:
    """Make the bags of a source, unless they are there."""
    path = _bags_file(source, place)
    if not path.exists():
        save_bags(path, load_bags(source, place.features, place.outlines))


def make_plans_of(job: Job, place: Place) -> None:
    """Make the plans that a job needs, unless they are there."""
    bags = read_bags(_bags_file(job.source, place))
    make_plans(_plans_file(job, place), job, bags)


def train(job: Job, place: Place) -> dict[str, Any]:
    """Train, choose the epoch, test: what a line of results holds besides the job."""
    began = time.monotonic()
    _prepare_torch(place)
    kept = _kept(job.source, place)
    parts = parts_of(kept.bags, job.split)
    plans = kept.plans(job, place)
    torch.manual_seed(job.seed)
    model = model_of(job, kept.bags.features.shape[1]).to(place.device)
    features = kept.centred(parts["train"]) if job.split else kept.features
    chosen = {name: Chosen(kept, features, plans, numbers) for name, numbers in parts.items()}
    found = {"parameters": sum(p.numel() for p in model.parameters())}
    if job.model != DARKNESS:
        found |= _learnt(job, place, model, chosen)
    if job.role == "run":
        found |= _tested(model, chosen, kept.bags, parts, heat=_drawn(job))
        if job.split:  # slides of a synthetic cohort are known by their numbers
            found["units"] = [str(unit) for unit in kept.bags.units[parts["test"]]]
    return found | {
        "ceiling": kept.bags.ceiling,
        "seconds": time.monotonic() - began,
        "device": _device_name(place),
        "torch": torch.__version__,
    }


def _learnt(
    job: Job, place: Place, model: MILModel, chosen: Mapping[str, Chosen]
) -> dict[str, Any]:
    """Train a model in place, and tell how it went."""
    fitted = fit(
        model,
        chosen["train"],
        Recipe(**update_keys(job.training)),
        validation=chosen["val"],
        seed=job.seed,
        trainer_class=_trainer(job, place),
    )
    told = {"epochs": len(fitted.history), "chosen": fitted.best_epoch}
    return told | _validated(fitted.history, fitted.best_epoch)


def _drawn(job: Job) -> bool:
    """Whether heatmaps are drawn of a job."""
    return job.study == "idc" and job.split["repeat"] == 1


class Kept:
    """Bags on the device, with the plans made for them."""

    def __init__(self, bags: Bags, device: str) -> None:
        self.bags, self.device = bags, torch.device(device)
        self.features = torch.from_numpy(bags.features).to(device)
        self.coords = torch.from_numpy(bags.coords).to(device)
        self.targets = torch.from_numpy(bags.labels).to(device)
        self._plans: OrderedDict[str, list[dict[str, Tensor]]] = OrderedDict()

    def plans(self, job: Job, place: Place) -> list[dict[str, Tensor]]:
        """For each bag what the model of a job needs to know beforehand."""
        file = _plans_file(job, place)
        if file.stem not in self._plans:
            if not file.exists():
                make_plans(file, job, self.bags)
            self._plans[file.stem] = [_on(self.device, plan) for plan in read_plans(file)]
            while len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(file.stem)
        return self._plans[file.stem]

    def centred(self, train: Sequence[int]) -> Tensor:
        """Features of all bags around the mean of those that train, one in scale.

        A real set was projected with the mean of other sets, and may lie far from it.
        """
        rows = np.concatenate([np.r_[self.bags.slice(bag)] for bag in train])
        known = self.features[torch.from_numpy(rows).to(self.device)].float()
        mean = known.mean(0)
        scale = (known - mean).square().mean().sqrt().clamp(min=1e-6)
        return ((self.features.float() - mean) / scale).half()


class Chosen(SampleLoader):
    """Some of the bags that are kept, ready on the device."""

    def __init__(
        self,
        kept: Kept,
        features: Tensor,
        plans: Sequence[Mapping[str, Tensor]],
        numbers: Sequence[int],
    ) -> None:
        self.targets = kept.bags.labels[list(numbers)]
        self.device = kept.device
        where = [kept.bags.slice(number) for number in numbers]
        self._ready = [
            Sample(features[rows], kept.coords[rows], plans[number], kept.targets[number])
            for number, rows in zip(numbers, where, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._ready)

    def __getitem__(self, index: int) -> Sample:
        return self._ready[index]

    def iter_samples(self, indices: Iterable[int]) -> Iterator[Sample]:
        """Samples one after the other."""
        return (self._ready[int(index)] for index in indices)


_KEPT: OrderedDict[str, Kept] = OrderedDict()


def _kept(source: Source, place: Place) -> Kept:
    name = digest(dict(source))
    if name not in _KEPT:
        make_bags(source, place)
        bags = read_bags(_bags_file(source, place))
        while _KEPT and bags.features.nbytes + _kept_bytes() > KEPT_BYTES:
            _KEPT.popitem(last=False)
        _KEPT[name] = Kept(bags, place.device)
    _KEPT.move_to_end(name)
    return _KEPT[name]


def _kept_bytes() -> int:
    return sum(kept.features.nbytes for kept in _KEPT.values())


def _trainer(job: Job, place: Place) -> type[Trainer]:
    replayed = place.device.startswith("cuda") and job.model not in NOT_RECORDED
    return ReplayTrainer if replayed else Trainer


def _validated(history: Sequence[Any], epoch: int) -> dict[str, float]:
    """Of the last stage, at the epoch that was chosen."""
    last = [line for line in history if line.stage == history[-1].stage]
    line = next(line for line in last if line.epoch == epoch)
    return {"val_auc": line.val_auc, "val_loss": line.val_loss}


def _tested(
    model: MILModel,
    chosen: Mapping[str, Chosen],
    bags: Bags,
    parts: Mapping[str, list[int]],
    *,
    heat: bool,
) -> dict[str, Any]:
    """Figures of the test part; with heat, what heatmaps are drawn from as well."""
    probabilities = predict_samples(model, chosen["test"])
    odds = _log_odds(probabilities)
    labels = bags.labels[parts["test"]]
    others = [name for name in parts if name not in ("train", "val", "test", "whole")]
    located = "whole" if "whole" in parts else "test"
    scores = _scores(model, chosen[located])
    found = _located(scores, bags, parts[located])
    maps = {"heat": _heat(scores, bags, parts[located])} if heat else {}
    return {
        "auc": auc(labels, odds),
        "accuracy": METRICS["accuracy"](labels, probabilities),
        "log_loss": METRICS["log_loss"](labels, probabilities),
        "localisation": found.pop("auc"),
        "more": found | maps | {name: _auc(model, chosen[name]) for name in others},
        "labels": labels.tolist(),
        "answers": " ".join(f"{value:.5g}" for value in odds),
    }


def _auc(model: MILModel, samples: Chosen) -> float:
    return auc(samples.targets, _log_odds(predict_samples(model, samples)))


def _located(scores: Sequence[Scores], bags: Bags, numbers: Sequence[int]) -> dict[str, float]:
    """Whether instances of the class score high, in bags that have both kinds."""
    truth = {n: bags.truth[bags.slice(n)] for n in numbers}
    telling = [n for n in numbers if (truth[n] > 0).any() and (truth[n] == 0).any()]
    if not telling:
        return {"auc": float("nan")}
    by_number = dict(zip(numbers, scores, strict=True))
    found = measure_localization(
        {str(n): by_number[n] for n in telling}, {str(n): truth[n] for n in telling}
    )
    return {
        "auc": found.auc,
        "localisation_ap": found.average_precision,
        "localisation_pooled": found.pooled_auc,
        "localisation_slides": found.slides,
    }


def _heat(scores: Sequence[Scores], bags: Bags, numbers: Sequence[int]) -> dict[str, str]:
    """By slide, the percentile of every patch's score among those of its slide."""
    ranks = [(100 * (rankdata(each) - 1) / len(each)).astype(int) for each in scores]
    names = [str(bags.units[n]) for n in numbers]
    return {name: " ".join(map(str, rank)) for name, rank in zip(names, ranks, strict=True)}


@torch.inference_mode()
def _scores(model: MILModel, samples: Chosen) -> list[Scores]:
    """Of class 1, where a model has scores by class: the truth is where that class is."""
    model.eval()
    outputs = [model(*sample[:3]) for sample in samples]
    scores = [
        out.scores if out.class_scores is None else out.class_scores[:, -1] for out in outputs
    ]
    return [score.float().cpu().numpy() for score in scores]


def _log_odds(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of class 1; apart where probabilities would be the same for rounding."""
    negative, positive = np.maximum(probabilities, np.finfo(np.float32).tiny).T
    odds: npt.NDArray[np.float64] = np.log(positive / negative)
    return odds


def _prepare_torch(place: Place) -> None:
    if place.device == "cpu":
        torch.set_num_threads(1)
        return
    torch.set_float32_matmul_precision("high")


def free_memory() -> None:
    """Leave the device to other workers: recordings of a job that has ended hold much of it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _device_name(place: Place) -> str:
    return torch.cuda.get_device_name() if place.device.startswith("cuda") else "cpu"


def _on(device: torch.device, plan: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value).to(device) for key, value in plan.items()}


def _bags_file(source: Source, place: Place) -> Path:
    return place.scratch / f"{digest(dict(source))}.bags.npz"


def _plans_file(job: Job, place: Place) -> Path:
    return place.scratch / f"{digest(dict(job.source))}.{plan_name(job)}.plans.npz"
