"""Inputs of prediction: slides and bags, given as files or folders."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sacmil.arguments import list_paths, to_path
from sacmil.bag import Bag
from sacmil.errors import BagWarning, FormatError, SacMILError, SlideError, explain_os_error
from sacmil.formats import find_bags, read_bag
from sacmil.formats._registry import list_bag_files, list_suffixes
from sacmil.limits import BAG_LIMIT_S
from sacmil.parallel import TaskOutcome, WorkerPool
from sacmil.results import Run
from sacmil.slides.search import find_slides

INPUT_ERRORS = (SacMILError, OSError, MemoryError, RuntimeError)
"""Errors of one item that do not stop the others; torch's out-of-memory is a RuntimeError."""
_PREFETCH = 2
"""Bags in memory besides the one being predicted."""


class PredictionInputs(NamedTuple):
    """Files by the name of their slide, which is the stem of the file."""

    bags: dict[str, Path]
    slides: dict[str, Path]


Paths = str | Path | Iterable[str | Path]
"""One path, or several."""
ModelPath = str | Path | Run
"""A model folder, an exported model, or a run of one model."""
ModelPaths = ModelPath | Iterable[ModelPath]


def to_model_path(model: object, name: str = "model") -> Path:
    """Return the path of a model or run."""
    if isinstance(model, Run):
        return model.folder
    return to_path(name, model, "the path of a model folder, an export or a run")


def list_model_paths(models: ModelPaths) -> list[Path]:
    """Return the paths of one or several models or runs."""
    if isinstance(models, Iterable) and not isinstance(models, str):
        models = [one.folder if isinstance(one, Run) else one for one in models]
    return list_paths("models", models.folder if isinstance(models, Run) else models)


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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BagWarning)
        bag = read_bag(path)
    messages = [str(w.message) for w in caught if issubclass(w.category, BagWarning)]
    return BagReading(bag, list(dict.fromkeys(messages)))


def prefetch_bags(paths: Iterable[Path], *, limit_s: float = BAG_LIMIT_S) -> Iterator[TaskOutcome]:
    """Yield readings in the order of the paths, each read while the previous one is predicted.

    A separate process reads them, because a damaged file can crash the library that reads it.
    """
    waiting = iter(paths)
    with WorkerPool(1) as worker:
        for key, path in enumerate(itertools.islice(waiting, _PREFETCH)):
            worker.submit(key, read_input_bag, path, limit_s=limit_s)
        submitted = _PREFETCH
        while (outcome := worker.next_outcome()) is not None:
            for path in itertools.islice(waiting, 1):
                worker.submit(submitted, read_input_bag, path, limit_s=limit_s)
                submitted += 1
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
