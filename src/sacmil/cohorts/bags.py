"""The bags of slides: found in folders by file name, and checked by their headers.

A header is the shape and the encoder of the features, read without the features. Headers are read
in worker processes, because a damaged file can crash or hang the HDF5 library. Many files are one
task: a message for each file would take longer than reading its header.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import h5py
import numpy as np

from sacmil.cohorts.rows import parse_slide_id
from sacmil.errors import CohortError, FormatError
from sacmil.formats import find_bags
from sacmil.formats._files import is_hdf5, open_file, read_attribute
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
_MAX_HINTS = 20
"""Number of missing slides for which a similar file is searched: as many as an error shows."""

Folders = str | Path | Iterable[str | Path]


class BagHeader(NamedTuple):
    """The shape of the features of a bag, and the encoder that made them."""

    instances: int
    dim: int
    encoder: str


HeaderOrProblem = BagHeader | str | None
"""A header, or the reason why it cannot be read; None for a file without a header."""


class BagIndex:
    """The bags in folders, by slide; folders are walked once and each header is read once.

    Args:
        folders: one or more, searched with their subfolders, in any supported layout.
    """

    def __init__(self, folders: Folders) -> None:
        listed = [Path(folders)] if isinstance(folders, str | Path) else list(map(Path, folders))
        self.location = ", ".join(map(str, listed))
        """The folders, for messages."""
        self.paths: Mapping[str, Path] = _find_bags_by_slide(listed)
        """The file of each bag, by the name of its slide."""
        self._headers: dict[Path, HeaderOrProblem] = {}

    @classmethod
    def from_paths(cls, paths: Mapping[str, str | Path]) -> Self:
        """Return an index of files that are already known, by slide."""
        index = cls(())
        index.location = "bags"
        index.paths = {slide_id: Path(path) for slide_id, path in paths.items()}
        return index

    def find_problems(self, slide_ids: Iterable[str], *, allow_missing: bool = False) -> list[str]:
        """Return all problems of the bags of slides that their headers show.

        Args:
            slide_ids: the slides.
            allow_missing: skip slides without a bag instead of reporting them.
        """
        wanted = list(slide_ids)
        problems = [] if allow_missing else self.find_missing(wanted)
        paths = {slide_id: self.paths[slide_id] for slide_id in wanted if slide_id in self.paths}
        headers = self.get_headers(paths)
        for slide_id, path in paths.items():
            header = self._headers[path]
            if isinstance(header, str):
                problems.append(header)
            elif header is not None and header.instances == 0:
                problems.append(f"{path}: holds no instances")
                del headers[slide_id]
        widths = {name: f"{header.dim} features" for name, header in headers.items()}
        encoders = {name: header.encoder for name, header in headers.items()}
        # Another width means another encoder, so one of the two is reported.
        outliers = list(find_outliers(paths, widths)) or list(find_outliers(paths, encoders))
        return problems + outliers

    def find_missing(self, slide_ids: Iterable[str]) -> list[str]:
        """Return a problem for each slide without a bag, with a similar file if there is one."""
        wanted = dict.fromkeys(slide_ids)
        missing = [slide_id for slide_id in wanted if slide_id not in self.paths]
        unused = [name for name in self.paths if name not in wanted]
        problems = [f"{slide_id}: has no bag" for slide_id in missing]
        for number, slide_id in enumerate(missing[:_MAX_HINTS]):
            if near := _find_nearest_name(slide_id, unused):
                problems[number] += f"; if it is {self.paths[near]}, use the same name for both"
        return problems

    def get_headers(self, paths: Mapping[str, Path]) -> dict[str, BagHeader]:
        """Return the headers of bags by slide; files without one, as of torch.save, are skipped.

        Args:
            paths: bags by slide.
        """
        unread = [path for path in dict.fromkeys(paths.values()) if path not in self._headers]
        self._headers |= dict(zip(unread, read_headers(unread), strict=True))
        found = {slide_id: self._headers[path] for slide_id, path in paths.items()}
        return {name: header for name, header in found.items() if isinstance(header, BagHeader)}


def describe_slide_mismatch(path: Path, slide_id: str, stored_id: str) -> str:
    """Describe the problem of a bag whose stored slide differs from its file name; else empty.

    Args:
        path: of the bag.
        slide_id: the slide according to the file name.
        stored_id: the slide according to the file's content.
    """
    if slide_id in (stored_id, parse_slide_id(stored_id)) or stored_id == path.stem:
        return ""
    return (
        f"{path}: holds the slide {stored_id!r} but is named {slide_id!r}; rename the file, or "
        "write the bag again"
    )


def find_outliers(paths: Mapping[str, Path], traits: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each bag that differs from most in a trait.

    Args:
        paths: of bags, by slide id.
        traits: the trait of each bag, by slide id; empty if it is unknown, which is no problem.
    """
    counts = Counter(filter(None, traits.values()))
    for usual, count in counts.most_common(1):
        for slide_id, text in traits.items():
            if text not in ("", usual):
                yield (
                    f"{paths[slide_id]}: {text}; expected {usual}, as {count} others have: bags "
                    "of one cohort need the same settings"
                )


def read_headers(paths: Sequence[Path]) -> list[HeaderOrProblem]:
    """Read the headers of many bags; a file that crashes or hangs its reader is a problem.

    Args:
        paths: files of bags. Files of torch.save have no header.
    """
    results: dict[Path, HeaderOrProblem] = {}
    unread: list[Path] = []
    for batch, outcome in _read_batches(paths, _BATCH_SIZE, limit_s=_BATCH_LIMIT_S):
        if outcome.failure is None:
            results.update(zip(batch, outcome.value, strict=True))
        else:
            unread.extend(batch)
    # A batch does not say which of its files ended the process.
    for (path,), outcome in _read_batches(unread, 1, limit_s=BAG_LIMIT_S):
        reason = f"reading its header failed: {outcome.failure}"
        problem = f"{path}: {reason}; copy the file again or extract it anew"
        results[path] = problem if outcome.failure else outcome.value[0]
    return [results[path] for path in paths]


def _read_batches(
    paths: Sequence[Path], size: int, *, limit_s: float
) -> Iterator[tuple[Sequence[Path], TaskOutcome]]:
    batches = [paths[start : start + size] for start in range(0, len(paths), size)]
    workers = min(-(-len(batches) // _BATCHES_PER_WORKER), _MAX_WORKERS, os.cpu_count() or 1)
    if batches:
        for outcome in run_each(read_batch, batches, workers=workers, limit_s=limit_s):
            yield batches[outcome.key], outcome


def read_batch(paths: Sequence[Path]) -> list[HeaderOrProblem]:
    """Read headers one after the other, in a worker process."""
    headers: list[HeaderOrProblem] = []
    for path in paths:
        try:
            headers.append(_read_header(path))
        except FormatError as error:
            headers.append(str(error))
    return headers


def _read_header(path: Path) -> BagHeader | None:
    """Read the header of one bag in this process; None if the file has none.

    Raises:
        FormatError: the file is damaged, or holds no features.
    """
    if path.suffix == ".npy":
        shape, encoder = _read_numpy_shape(path), ""
    elif path.suffix.lower() in (".h5", ".hdf5") or is_hdf5(path):
        shape, encoder = _read_hdf5_shape(path)
    else:
        return None
    if len(shape) < 2:
        raise FormatError(f"{path}: features have shape {shape}; expected (N, D)")
    return BagHeader(shape[-2], shape[-1], encoder)


def _read_hdf5_shape(path: Path) -> tuple[tuple[int, ...], str]:
    with open_file(path, only=_FEATURE_NAMES) as file:
        found = (open_dataset(file, name) for name in _FEATURE_NAMES)
        array = next((array for array in found if array is not None), None)
        if array is None:
            names = ", ".join(sorted(file)) or "nothing"
            raise FormatError(f"{path}: holds {names}; expected {' or '.join(_FEATURE_NAMES)}")
        features = h5py.Dataset(array)
        encoder = read_attribute(features, "encoder") or read_attribute(file, "extractor") or ""
        return array.shape, str(encoder)


def _read_numpy_shape(path: Path) -> tuple[int, ...]:
    try:
        shape: tuple[int, ...] = np.load(path, mmap_mode="r", allow_pickle=False).shape
        return shape
    # numpy can raise almost any error for a damaged file: its header is parsed as Python.
    except Exception as error:
        raise FormatError(f"{path}: cannot be read as a numpy array ({error})") from error


def _find_bags_by_slide(folders: list[Path]) -> dict[str, Path]:
    for folder in folders:
        if not folder.exists():
            raise CohortError(folder, ["there is no such folder; expected bags, check the path"])
    files = find_bags(folders)
    # a file with exactly the slide's name is preferred to one with an extra suffix
    return {parse_slide_id(file.name): file for file in files} | {file.stem: file for file in files}


def _find_nearest_name(slide_id: str, names: Sequence[str]) -> str | None:
    """Return a name that differs in case or continues the id, as TCGA's do; else a similar one."""
    folded = slide_id.casefold()
    longer = [name for name in names if name.casefold().startswith(folded)]
    shorter = [name for name in names if len(name) > 3 and folded.startswith(name.casefold())]
    if longer or shorter:
        return min(longer or shorter, key=lambda name: abs(len(name) - len(slide_id)))
    return next(iter(difflib.get_close_matches(slide_id, names, n=1, cutoff=0.85)), None)
