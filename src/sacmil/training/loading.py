"""Loading of labelled bags: cached in memory or on the GPU if they fit, otherwise read ahead.

Plans are made once per bag and always cached; they are small compared to the features.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.bag import Bag
from sacmil.errors import SacMILError
from sacmil.formats import read_bag
from sacmil.models import MILModel, Sample

CacheMode = Literal["auto", "none", "memory", "gpu"]
"""Where features are cached between epochs; auto takes the fastest memory they fit in."""

BagReader = Callable[[Path], Bag]

_READ_AHEAD_BAGS = 2
"""Bags read in the background while the model trains."""
_MAX_MEMORY_SHARE = 0.5
"""Share of the free memory that bags may take."""


def to_sample(model: MILModel, bag: Bag, label: int) -> Sample:
    """Return a bag as tensors, with the model's plan."""
    coords = bag.patch_coords
    plan = model.plan(coords, bag.features)
    return Sample(
        features=_copy_to_tensor(bag.features),
        coords=_copy_to_tensor(coords),
        plan={key: torch.from_numpy(value) for key, value in plan.items()},
        target=torch.tensor(label),
    )


def _copy_to_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Copy to torch's own aligned memory: the rounding of sums depends on the alignment."""
    return torch.tensor(array)


def move_sample(sample: Sample, device: torch.device) -> Sample:
    """Return a copy of the sample on a device."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    plan = {key: move(torch.as_tensor(value)) for key, value in sample.plan.items()}
    return Sample(move(sample.features), move(sample.coords), plan, move(sample.target))


class SampleLoader:
    """The bags of a training, validation or test set, by number.

    Args:
        model: makes the plans.
        paths: of the bags.
        labels: the class of each.
        device: that samples are moved to.
        cache: where features are cached.
        read: reads a bag file.
    """

    def __init__(
        self,
        model: MILModel,
        paths: Sequence[Path],
        labels: Sequence[int],
        *,
        device: torch.device | str = "cpu",
        cache: CacheMode = "auto",
        read: BagReader = read_bag,
    ) -> None:
        self.targets: npt.NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        self.device = torch.device(device)
        self._model, self._paths, self._read = model, paths, read
        self._cached: dict[int, Sample] = {}
        self._plans: dict[int, Sample] = {}
        self.cache = _choose_cache(cache, paths, self.device)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Sample:
        return self._move_and_cache(index, self._load(index))

    def __iter__(self) -> Iterator[Sample]:
        return self.iter_samples(range(len(self)))

    def iter_samples(self, indices: Iterable[int]) -> Iterator[Sample]:
        """Yield samples in order; those that are not cached are read ahead."""
        order = [int(index) for index in indices]
        if all(index in self._cached for index in order):
            yield from (self[index] for index in order)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="read") as pool:
            reading: deque[Future[Sample]] = deque()
            ahead = iter(order)
            for index in order:
                for other in islice(ahead, _READ_AHEAD_BAGS + 1 - len(reading)):
                    reading.append(pool.submit(self._load, other))
                yield self._move_and_cache(index, reading.popleft().result())

    def _load(self, index: int) -> Sample:
        if index in self._cached:
            return self._cached[index]
        try:
            bag = self._read(self._paths[index])
            planned = self._plans.get(index)
            if planned is None:
                sample = to_sample(self._model, bag, int(self.targets[index]))
                self._plans[index] = sample._replace(features=torch.empty(0))
                return sample
        except SacMILError as error:
            if str(self._paths[index]) in str(error):
                raise
            raise type(error)(f"{self._paths[index]}: {error}") from error
        return planned._replace(features=_copy_to_tensor(bag.features))

    def _move_and_cache(self, index: int, sample: Sample) -> Sample:
        ready = move_sample(sample, self.device)
        if self.cache == "memory":
            self._cached[index] = sample
        elif self.cache == "gpu":
            self._cached[index] = ready
        return ready


def make_sample_loader(
    model: MILModel, bags: Sequence[Bag], labels: Sequence[int], device: torch.device | str = "cpu"
) -> SampleLoader:
    """Return a loader of bags that are in memory already."""
    by_number = {Path(str(number)): bag for number, bag in enumerate(bags)}
    return SampleLoader(
        model, list(by_number), labels, device=device, cache="memory", read=by_number.__getitem__
    )


def _choose_cache(cache: CacheMode, paths: Sequence[Path], device: torch.device) -> CacheMode:
    if cache != "auto":
        return "memory" if cache == "gpu" and device.type == "cpu" else cache
    needed = sum(path.stat().st_size for path in paths)
    if device.type == "cuda" and needed < _MAX_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
        return "gpu"
    return "memory" if needed < _MAX_MEMORY_SHARE * _free_memory() else "none"


def _free_memory() -> float:
    """Return the free memory in bytes; 0 if the system does not report it."""
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
        return float(pages)
    except (OSError, ValueError, AttributeError):
        return 0.0
