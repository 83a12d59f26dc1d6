"""Loading of labelled bags: those that fit stay on the GPU or in memory, others are read ahead.

The first time, a bag is read through its layout, checked, and planned. From then on its features
are read from where they are in the file, straight into memory that the GPU copies from, by several
threads. What a model gets is the same wherever it came from.
"""

from __future__ import annotations

import math
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.bag import Bag
from sacmil.environment import find_free_memory
from sacmil.errors import SacMILError
from sacmil.formats import read_bag
from sacmil.formats._stored_features import StoredFeatures, find_stored_features
from sacmil.kernels.cuda_graphs import Field
from sacmil.models import MILModel, Sample
from sacmil.models._checks import warn_if_pixels
from sacmil.plans import PlanFolder
from sacmil.tasks import Task
from sacmil.training.packing import PackedSample, allocate, pack

CacheMode = Literal["auto", "none", "memory", "gpu"]
"""Where features stay between epochs, as far as they fit; auto takes the fastest memory."""

BagReader = Callable[[Path], Bag]

_MAX_READERS = 8
"""Threads that read for a GPU."""
_READ_AHEAD_BAGS = 2
"""Bags that are read or ready besides one for each thread."""
_READ_AHEAD_BYTES = 2**30
"""Of bags that are read ahead, if there is more than one."""
_MAX_MEMORY_SHARE = 0.5
"""Share of the free memory that bags may take."""
_MAX_PLANS_IN_MEMORY = 2**28
"""Bytes of plans; more go to a temporary file."""


def to_sample(model: MILModel, bag: Bag, target: Tensor, plans: PlanFolder | None = None) -> Sample:
    """Return a bag as tensors that share its memory, with the model's plan.

    Args:
        model: makes the plan.
        bag: of a slide.
        target: of the slide.
        plans: where the plan may be stored already.
    """
    features, coords = bag.features, bag.patch_coords
    make = partial(model.plan, coords, features)
    plan = plans.fetch(model.planner, coords, features, make) if plans else make()
    warn_if_pixels(coords)  # a stored plan was made without the model
    return Sample(
        features=torch.from_numpy(features if features.flags.writeable else features.copy()),
        coords=torch.from_numpy(coords),
        plan={key: torch.from_numpy(value) for key, value in plan.items()},
        target=target,
    )


class SampleLoader:
    """The bags of a training, validation or test set, by number.

    Args:
        model: makes the plans.
        paths: of the bags.
        labels: the class of each, or its targets (bags, T).
        task: what is predicted; None means the classes.
        device: that samples are moved to.
        cache: where features stay between epochs.
        read: reads a bag file.
        read_once: whether every bag is needed once only; nothing is kept.
        plans: where plans are stored; None makes them.
    """

    def __init__(
        self,
        model: MILModel,
        paths: Sequence[Path],
        labels: Sequence[int] | npt.NDArray[Any],
        *,
        task: Task | None = None,
        device: torch.device | str = "cpu",
        cache: CacheMode = "auto",
        read: BagReader = read_bag,
        read_once: bool = False,
        plans: PlanFolder | None = None,
    ) -> None:
        listed = np.asarray(labels, dtype=np.float64)
        self._task = task or model.known_task
        width = len(self._task.target_columns)
        self.targets: npt.NDArray[np.float64] = listed.reshape(len(listed), width)
        """(bags, T)."""
        self.device = torch.device(device)
        self._model, self._paths, self._read = model, paths, read
        self._read_once, self._plan_folder = read_once, plans
        self._known: dict[int, _KnownBag] = {}
        self._stored: dict[int, StoredFeatures | None] = {}
        self._plans = _ByteStore()
        self._cache = _Cache("none" if read_once else cache, self.device)
        self._copies = _make_stream(self.device) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Sample:
        return self._receive(self._load(index))

    def __iter__(self) -> Iterator[Sample]:
        return self.iter_samples(range(len(self)))

    def iter_samples(self, indices: Iterable[int]) -> Iterator[Sample]:
        """Yield samples in order; those that are not on the device yet are read ahead."""
        order = [int(index) for index in indices]
        if all(self._cache.is_ready(index) for index in order):
            yield from (self[index] for index in order)
            return
        readers = self._count_readers()
        waiting = deque(order)
        loading: deque[tuple[int, Future[_Loaded]]] = deque()
        with ThreadPoolExecutor(readers, thread_name_prefix="read") as pool:
            for _ in order:
                while waiting and self._has_room(waiting[0], [n for n, _ in loading], readers):
                    index = waiting.popleft()
                    # an index that is drawn twice in a row is loaded once
                    same = next((future for number, future in loading if number == index), None)
                    loading.append((index, same or pool.submit(self._load, index)))
                yield self._receive(loading.popleft()[1].result())

    def _count_readers(self) -> int:
        """Return how many threads read: on a CPU the model needs the cores."""
        return min(_MAX_READERS, torch.get_num_threads()) if self.device.type == "cuda" else 1

    def _has_room(self, index: int, ahead: Sequence[int], readers: int) -> bool:
        """Whether another bag may be read ahead."""
        if len(ahead) < 2:
            return True
        size = sum(map(self._estimate_bytes, [index, *ahead]))
        return len(ahead) < readers + _READ_AHEAD_BAGS and size <= _READ_AHEAD_BYTES

    def _estimate_bytes(self, index: int) -> int:
        known = self._known.get(index)
        if known:
            return known.fields[-1].stop
        path = self._paths[index]
        return path.stat().st_size if path.exists() else 0

    def _load(self, index: int) -> _Loaded:
        """Return a bag, and start its copy to a GPU; run by a thread."""
        cached = self._cache.get(index)
        if cached and cached.block.device.type == self.device.type:
            return _Loaded(cached, resident=True)
        try:
            packed = cached or self._read_packed(index)
        except SacMILError as error:
            if str(self._paths[index]) in str(error):
                raise
            raise type(error)(f"{self._paths[index]}: {error}") from error
        moved, arrived = (packed, None) if self.device.type == "cpu" else self._copy(packed)
        if not cached and not self._cache.keep(index, moved) and not packed.block.is_pinned():
            self._cache.keep(index, packed)
        return _Loaded(moved, arrived, resident=self._cache.is_ready(index))

    def _copy(self, packed: PackedSample) -> tuple[PackedSample, torch.cuda.Event | None]:
        """Copy a bag to the device; on a GPU beside its work, with an event after the copy."""
        if self._copies is None:
            return packed.move(self.device), None
        if not packed.block.is_pinned():
            packed = packed.copy_to(self._allocate(packed.fields))
        with torch.cuda.stream(self._copies):
            moved = packed.move(self.device)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._copies)
        return moved, arrived

    def _receive(self, loaded: _Loaded) -> Sample:
        """Return a sample that the current stream of the GPU may use."""
        if loaded.arrived:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(loaded.arrived)
            loaded.packed.block.record_stream(stream)
        return loaded.packed.unpack()._replace(resident=loaded.resident)

    def _allocate(self, fields: tuple[Field, ...]) -> PackedSample:
        return allocate(fields, pinned=self._copies is not None)

    def _read_packed(self, index: int) -> PackedSample:
        known = self._known.get(index)
        if known is None:
            return self._read_first_time(index)
        packed = self._allocate(known.fields)
        end, stored = packed.features_end, self._stored.get(index)
        if not (stored and stored.read_into(packed.view_bytes(0, end))):
            self._read_through_layout(index, packed)
        self._plans.read_into(packed.view_bytes(end, packed.block.nbytes), known.plan)
        return packed

    def _read_first_time(self, index: int) -> PackedSample:
        bag = self._read(self._paths[index])
        target = self._task.prepare(self.targets[index])
        packed = pack(to_sample(self._model, bag, target, self._plan_folder))
        if not self._read_once:
            plan = self._plans.add(packed.view_bytes(packed.features_end, packed.block.nbytes))
            self._known[index] = _KnownBag(packed.fields, plan)
            if not self._cache.has_room(packed):
                self._stored[index] = find_stored_features(self._paths[index], bag.features)
        return packed

    def _read_through_layout(self, index: int, packed: PackedSample) -> None:
        """Read features again; from then on where the file stores them, if it can be found."""
        path, own = self._paths[index], packed.tensors["features"]
        features = self._read(path).features
        if features.shape != tuple(own.shape) or features.dtype != own.numpy().dtype:
            raise SacMILError(
                f"{path}: has changed since training began: found {len(features)} x "
                f"{features.shape[1]} {features.dtype}, expected {len(own)} x {own.shape[1]} "
                f"{own.numpy().dtype}; start the run again"
            )
        np.copyto(own.numpy(), features)
        self._stored[index] = find_stored_features(path, features)


class _Loaded(NamedTuple):
    """A bag on the device."""

    packed: PackedSample
    arrived: torch.cuda.Event | None = None
    """After it, the copy to a GPU is complete; None if nothing has to be waited for."""
    resident: bool = False
    """Whether it stays there."""


class _KnownBag(NamedTuple):
    """A bag that has been read before."""

    fields: tuple[Field, ...]
    plan: tuple[int, int]
    """Where its plan is stored."""


class _Cache:
    """The bags that stay in memory, on the device if they can.

    Bags may take half of the memory that is free at the start, those of other loaders and processes
    included: whichever comes first stays, the others are read in every epoch.
    """

    def __init__(self, mode: CacheMode, device: torch.device) -> None:
        self._device, self._mode = device, mode
        self._kept: dict[int, PackedSample] = {}
        on_gpu = device.type == "cuda" and mode in ("auto", "gpu")
        kinds = [] if mode == "none" else ["cpu", *(["cuda"] if on_gpu else [])]
        self._spare = {kind: self._find_free(kind) * (1 - _MAX_MEMORY_SHARE) for kind in kinds}
        """Bytes that must stay free, by the kind of memory."""

    def get(self, index: int) -> PackedSample | None:
        """Return a bag that was kept."""
        return self._kept.get(index)

    def is_ready(self, index: int) -> bool:
        """Whether a bag is on the device."""
        kept = self._kept.get(index)
        return kept is not None and kept.block.device.type == self._device.type

    def has_room(self, packed: PackedSample) -> bool:
        """Whether some memory has room for a bag."""
        return any(self._fits(kind, packed) for kind in self._spare)

    def keep(self, index: int, packed: PackedSample) -> bool:
        """Keep a bag if the memory it is in has room; return whether it was kept."""
        fits = self._fits(packed.block.device.type, packed)
        if fits:
            self._kept[index] = packed
        return fits

    def _fits(self, kind: str, packed: PackedSample) -> bool:
        known = kind in self._spare
        return known and self._find_free(kind) - packed.block.nbytes >= self._spare[kind]

    def _find_free(self, kind: str) -> float:
        if kind == "cpu":
            unknown = 0.0 if self._mode == "auto" else math.inf
            return find_free_memory() or unknown
        held, used = torch.cuda.memory_reserved, torch.cuda.memory_allocated
        free = torch.cuda.mem_get_info(self._device)[0]
        return float(free + held(self._device) - used(self._device))


def _make_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _ByteStore:
    """Bytes that were stored, in memory or in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_MAX_PLANS_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()

    def add(self, values: memoryview) -> tuple[int, int]:
        """Store bytes; return where they are."""
        with self._lock:
            start = self._file.seek(0, 2)
            self._file.write(values)
            return start, len(values)

    def read_into(self, out: memoryview, place: tuple[int, int]) -> None:
        """Read what was stored there."""
        with self._lock:
            self._file.seek(place[0])
            out[:] = self._file.read(place[1])


def make_sample_loader(
    model: MILModel, bags: Sequence[Bag], labels: Sequence[int], device: torch.device | str = "cpu"
) -> SampleLoader:
    """Return a loader of bags that are in memory already."""
    by_number = {Path(str(number)): bag for number, bag in enumerate(bags)}
    return SampleLoader(
        model, list(by_number), labels, device=device, cache="memory", read=by_number.__getitem__
    )
