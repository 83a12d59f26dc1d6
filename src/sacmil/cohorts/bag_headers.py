"""Headers of bags: the shape and the encoder of the features, read without the features.

They are read in worker processes, because a damaged file can crash or hang the HDF5 library.
Many files are one task: a message for each file would take longer than reading its header.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from sacmil.errors import FormatError
from sacmil.formats._hdf5 import is_hdf5, open_file, read_attribute
from sacmil.hdf5 import open_dataset
from sacmil.limits import BAG_LIMIT_S
from sacmil.parallel import TaskOutcome, run_each

_FEATURE_NAMES = ("features", "feats")
_BATCH_SIZE = 200
"""Files of one task."""
_BATCH_LIMIT_S = 60.0
"""Seconds for one batch. A batch that takes longer is read again, file by file."""
_BATCHES_PER_WORKER = 3
"""Batches per process; reading fewer is faster than starting a process."""
_MAX_WORKERS = 8
_FIX_HINT = "copy the file again or extract it anew"


class BagHeader(NamedTuple):
    """The shape of the features of a bag, and the encoder that made them."""

    instances: int
    dim: int
    encoder: str


HeaderOrProblem = BagHeader | str | None
"""A header, or the reason why it cannot be read; None for a file without a header."""


def read_headers(paths: Sequence[Path]) -> list[HeaderOrProblem]:
    """Read the headers of many bags; a file that crashes or hangs its reader is a problem.

    Args:
        paths: files of bags. Files of torch.save have no header.
    """
    batches = [paths[start : start + _BATCH_SIZE] for start in range(0, len(paths), _BATCH_SIZE)]
    results: dict[Path, HeaderOrProblem] = {}
    unread: list[Path] = []
    for outcome in _run_batches(batches, limit_s=_BATCH_LIMIT_S):
        batch = batches[outcome.key]
        if outcome.failure is None:
            results.update(zip(batch, outcome.value, strict=True))
        else:
            unread.extend(batch)
    # A batch does not say which of its files ended the process.
    for outcome in _run_batches([[path] for path in unread], limit_s=BAG_LIMIT_S):
        path = unread[outcome.key]
        problem = f"{path}: reading its header failed: {outcome.failure}; {_FIX_HINT}"
        results[path] = problem if outcome.failure else outcome.value[0]
    return [results[path] for path in paths]


def _run_batches(batches: Sequence[Sequence[Path]], *, limit_s: float) -> Iterator[TaskOutcome]:
    if not batches:
        return iter(())
    workers = min(-(-len(batches) // _BATCHES_PER_WORKER), _MAX_WORKERS, os.cpu_count() or 1)
    return run_each(read_batch, batches, workers=workers, limit_s=limit_s)


def read_batch(paths: Sequence[Path]) -> list[HeaderOrProblem]:
    """Read headers one after the other, in a worker process."""
    return [_read_header_or_problem(path) for path in paths]


def _read_header_or_problem(path: Path) -> HeaderOrProblem:
    try:
        return _read_header(path)
    except FormatError as error:
        return str(error)


def _read_header(path: Path) -> BagHeader | None:
    """Read the header of one bag in this process; None if the file has none.

    Raises:
        FormatError: the file is damaged, or holds no features.
    """
    if path.suffix == ".npy":
        return _read_numpy_header(path)
    is_named_hdf5 = path.suffix.lower() in (".h5", ".hdf5")
    return _read_hdf5_header(path) if is_named_hdf5 or is_hdf5(path) else None


def _read_hdf5_header(path: Path) -> BagHeader:
    with open_file(path, only=_FEATURE_NAMES) as file:
        found = (open_dataset(file, name) for name in _FEATURE_NAMES)
        array = next((array for array in found if array is not None), None)
        if array is None:
            names = ", ".join(sorted(file)) or "nothing"
            raise FormatError(f"{path}: holds {names}; expected {' or '.join(_FEATURE_NAMES)}")
        features = h5py.Dataset(array)
        encoder = read_attribute(features, "encoder") or read_attribute(file, "extractor") or ""
        return _make_header(path, array.shape, str(encoder))


def _read_numpy_header(path: Path) -> BagHeader:
    try:
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    # numpy can raise almost any error for a damaged file: its header is parsed as Python.
    except Exception as error:
        raise FormatError(f"{path}: cannot be read as a numpy array ({error})") from error
    return _make_header(path, shape, "")


def _make_header(path: Path, shape: tuple[int, ...], encoder: str) -> BagHeader:
    if len(shape) < 2:
        raise FormatError(f"{path}: features have shape {shape}; expected (N, D)")
    return BagHeader(shape[-2], shape[-1], encoder)
