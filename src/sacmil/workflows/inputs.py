"""What workflows share: settings, callbacks, paths of models, bags, slides and output folders."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from sacmil.arguments import ProgressCallback, ignore_progress, to_output_folder
from sacmil.bag import Bag
from sacmil.card import CARD_FILE, is_exported_run
from sacmil.errors import (
    BagWarning,
    FormatError,
    InputError,
    OptionError,
    SacMILError,
    SlideError,
    explain_os_error,
)
from sacmil.formats import find_bags, read_bag
from sacmil.formats._registry import list_bag_files, list_suffixes
from sacmil.limits import BAG_LIMIT_S
from sacmil.parallel import TaskOutcome, WorkerPool
from sacmil.results import Run
from sacmil.slides.search import find_slides

if TYPE_CHECKING:
    from sacmil.extraction.extract_slides import ExtractionProgress

INPUT_ERRORS = (SacMILError, OSError, MemoryError, RuntimeError)
"""Errors of one item that do not stop the others; torch's out-of-memory is a RuntimeError."""
_PREFETCH = 2
"""Bags in memory besides the one being predicted."""

Item = TypeVar("Item")
Paths = str | Path | Iterable[str | Path]
"""One path, or several."""
ModelPath = str | Path | Run
"""A model folder, an exported model, or a run of one model."""
ModelPaths = ModelPath | Iterable[ModelPath]
MODEL_PATH = "the path of a model folder, an export or a run"
ExtractionTracker: TypeAlias = "Callable[[int], AbstractContextManager[ExtractionProgress]]"
"""Called with the number of slides; returns a context with the progress of extraction."""


@dataclass(frozen=True)
class BagSettings:
    """How slides become bags that models accept; predict_slides describes the settings."""

    device: str
    slide_mpp: str | None
    encoder: str | None
    encoder_weights: str | Path | None
    download: bool
    allow_mismatch: bool


@dataclass(frozen=True, kw_only=True)
class WorkflowCallbacks:
    """Callbacks for the progress of a workflow."""

    on_progress: ProgressCallback = ignore_progress
    """Called with (task, done, total)."""
    track_extraction: ExtractionTracker | None = None

    def track(self, task: str, items: Sequence[Item]) -> Iterator[Item]:
        """Yield items, and report each as done once the next is taken."""
        for done, item in enumerate(items):
            self.on_progress(task, done, len(items))
            yield item
        if items:
            self.on_progress(task, len(items), len(items))

    def show_extraction(self, slides: int) -> AbstractContextManager[Any]:
        """Return a context with the progress of extraction, which is None if nobody tracks it."""
        return self.track_extraction(slides) if self.track_extraction else nullcontext()


def check_output_folder(out: str | Path) -> Path:
    """Return the path of a folder to write to; reject a file, and a run or model folder."""
    folder = to_output_folder(out)
    if holds_model(folder):
        raise OptionError(f"{folder}: holds a run or a model; choose another `out`")
    return folder


def holds_model(folder: Path) -> bool:
    """Whether a folder is that of a model or a run, exported or not."""
    has_file = any((folder / name).exists() for name in ("config.yaml", CARD_FILE))
    return has_file or is_exported_run(folder)


class PredictionInputs(NamedTuple):
    """Files by the name of their slide, which is the stem of the file."""

    bags: dict[str, Path]
    slides: dict[str, Path]


def find_inputs(items: Iterable[str | Path], *, outside: Path) -> PredictionInputs:
    """Find every slide and bag in files and folders.

    A folder that contains bags is a folder of bags, and images in it are not slides. Only a folder
    without bags is searched for slides.

    Args:
        items: a file with a bag's suffix is a bag, any other a slide.
        outside: folder that is not searched: that of the results.
    """
    bags: list[Path] = []
    slides: list[Path] = []
    for item in map(Path, items):
        if not item.exists():
            raise SlideError(f"{item}: there is no such file or folder; check the path")
        if item.is_dir():
            found = list_bag_files(item, outside)
            bags += found
            slides += [] if found else _find_slides_in(item, outside)
        else:
            (bags if item.suffix.lower() in list_suffixes() else slides).append(item)
    return _index_by_name(find_bags(bags), find_slides(slides) if slides else [])


def _find_slides_in(folder: Path, outside: Path) -> list[Path]:
    try:
        return find_slides([folder], exclude=[outside])
    except SlideError as error:
        named = ", ".join(list_suffixes())
        raise SlideError(f"{folder}: holds no bags ({named}), and {error}") from error


def _index_by_name(bags: list[Path], slides: list[Path]) -> PredictionInputs:
    found = PredictionInputs(
        {file.stem: file for file in bags}, {file.stem: file for file in slides}
    )
    for name in sorted(found.bags.keys() & found.slides.keys()):
        raise FormatError(
            f"{name} is given as the bag {found.bags[name]} and as the slide "
            f"{found.slides[name]}; give only the bag, and the slide's folder by `slides`"
        )
    return found


class BagReading(NamedTuple):
    """A bag, and the warnings of reading it."""

    bag: Bag
    warnings: list[str]


def read_input_bag(path: Path) -> BagReading:
    """Read one bag; runs in a worker process."""
    with collect_bag_warnings() as messages:
        return BagReading(read_bag(path), messages)


@contextmanager
def collect_bag_warnings() -> Iterator[list[str]]:
    """Yield a list that holds each warning about a bag once, after the block."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BagWarning)
        yield messages
    messages += dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, BagWarning))


def process_bags(
    bags: Mapping[str, Path],
    process: Callable[[str, BagReading], None],
    *,
    task: str,
    limit_s: float,
    on_progress: ProgressCallback,
) -> dict[str, str]:
    """Process each bag; return reasons by name of those that fail, which do not stop the others.

    Args:
        bags: files by name.
        process: called with the name and the bag.
        task: name in the progress.
        limit_s: seconds to read one bag.
        on_progress: called with (task, done, total).
    """
    failures = {}
    on_progress(task, 0, len(bags))
    readings = prefetch_bags(bags.values(), limit_s=limit_s)
    for done, (name, reading) in enumerate(zip(bags, readings, strict=True), start=1):
        try:
            if reading.failure is not None:
                raise InputError(reading.failure)
            process(name, reading.value)
        except INPUT_ERRORS as error:
            failures[name] = describe_error(error)
        on_progress(task, done, len(bags))
    return failures


def prefetch_bags(paths: Iterable[Path], *, limit_s: float = BAG_LIMIT_S) -> Iterator[TaskOutcome]:
    """Yield readings in the order of the paths, each read while the previous one is predicted.

    A separate process reads them, because a damaged file can crash the library that reads it.
    """
    waiting = enumerate(paths)
    with WorkerPool(1) as worker:
        for key, path in itertools.islice(waiting, _PREFETCH):
            worker.submit(key, read_input_bag, path, limit_s=limit_s)
        while (outcome := worker.next_outcome()) is not None:
            for key, path in itertools.islice(waiting, 1):
                worker.submit(key, read_input_bag, path, limit_s=limit_s)
            yield outcome


def make_printable_path(path: str | Path) -> str:
    """Return a path as valid UTF-8, which file names need not be."""
    return str(path).encode(errors="backslashreplace").decode()


def describe_error(error: BaseException) -> str:
    """Return a sentence about the error of an item."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = explain_os_error(error)
    return make_printable_path(text if isinstance(error, SacMILError) else text.splitlines()[0])
