"""The slides of a job: made from a seed, or read from a folder of bags and a table of labels.

Real data has the product's own form: ``BAGS/SLIDE.h5`` and a table with slide_id, patient_id and
label, both below the folder given as ``--data``. Other data in the same form needs no change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.bag import Bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide, read_cohort
from sacmil.cohorts.splits import make_folds
from sacmil.errors import SacMILError
from sacmil.formats import read_bag
from sacmil.metrics.classification import auc
from sacmil.synthetic.bags import (
    PRESETS,
    Polygons,
    SyntheticBagSettings,
    compute_oracle_scores,
    make_labeled_bag,
    read_shapes,
)
from sacmil.synthetic.bags.cohort import PATCH_SIZE
from sacmil.tasks import Task
from sacmil.units import Level0Px

CLASSES = ("0", "1")
PARTS = ("train", "val", "test")
TILE = Level0Px(PATCH_SIZE)
_ARRAYS = ("features", "coords", "labels")
"""What a bag of a synthetic cohort holds."""
ALL_TILES = "whole"
"""The part of whole slides that scores are compared with outlines on, where bags are windows."""


@dataclass(frozen=True)
class Place:
    """Where jobs are done."""

    scratch: Path
    """For plans and finished jobs."""
    device: str = "cpu"
    data: Path | None = None
    """Folder of real data."""
    outlines: Path | None = None
    """File of real lesion outlines."""


class Slide(NamedTuple):
    """A labelled bag."""

    bag: Bag
    label: int
    patient: str
    part: str
    """Of a synthetic cohort: train, val, test, or x2 for slides twice as long. Of real data: bag;
    train and test for windows that may train or test, whole for the slide they are cut from."""
    targets: tuple[float, ...] = ()
    """Time and event, where these are the target. The label is the event: folds are made by it."""


class Slides(NamedTuple):
    """The slides of a task."""

    slides: Sequence[Slide]
    oracle: float
    """AUC of the best possible answer on a synthetic test set, otherwise NaN."""
    task: Task | None = None
    """What is predicted; None means classes."""


def load_slides(data: Mapping[str, Any], seed: int, place: Place) -> Slides:
    """Make or read the slides of a task.

    Args:
        data: fields of ``study.Task``.
        seed: of a synthetic cohort.
        place: where real data is.
    """
    check_data(data, place)
    if data["synthetic"]:
        return _make_cohort(data, seed, place.outlines)
    folder = place.data or Path()
    if data.get("target"):
        return _read_survival_slides(data, folder)
    return Slides(_read_slides(data, folder), float("nan"))


def divide_slides(slides: Sequence[Slide], data: Mapping[str, Any], fold: int) -> dict[str, Any]:
    """Return numbers of slides by part; patients are never divided.

    Args:
        slides: of the task.
        data: fields of ``study.Task``.
        fold: 100 * repeat + fold of a cross-validation.
    """
    if data["synthetic"]:
        names = dict.fromkeys(slide.part for slide in slides)
        return {name: [n for n, one in enumerate(slides) if one.part == name] for name in names}
    known = [slide for slide in slides if slide.part in ("bag", ALL_TILES)]
    labels = [slide.label for slide in known]
    if data["windows"]:  # nearly all whole slides are positive: half of them count as more so
        shares = [float((_get_truth(slide.bag) > 0).mean()) for slide in known]
        labels = [int(share > np.median(shares)) for share in shares]
    table = tuple(
        LabeledSlide(slide.bag.slide_id, slide.patient, label)
        for slide, label in zip(known, labels, strict=True)
    )
    made = make_folds(
        Cohort(table, ("negative", "positive")),
        int(data["folds"]),
        seed=fold // 100,
        validation=float(data["validation"]),
    )[fold % 100]
    patients = {slide.bag.slide_id: slide.patient for slide in known}
    members = {part: {patients[name] for name in getattr(made, part)} for part in PARTS}
    parts = {part: _find(slides, members[part], _choose_kind(part, data)) for part in PARTS}
    whole = {ALL_TILES: _find(slides, members["test"], ALL_TILES)} if data["windows"] else {}
    return parts | whole


def _choose_kind(part: str, data: Mapping[str, Any]) -> str:
    if not data["windows"]:
        return "bag"
    return "train" if part == "train" else "test"


def _find(slides: Sequence[Slide], patients: set[str], kind: str) -> list[int]:
    return [n for n, one in enumerate(slides) if one.patient in patients and one.part == kind]


def _get_truth(bag: Bag) -> npt.NDArray[np.integer]:
    return np.full(len(bag), -1) if bag.labels is None else bag.labels


# --- synthetic ------------------------------------------------------------------------------------


def _make_cohort(data: Mapping[str, Any], seed: int, outlines: Path | None) -> Slides:
    slides = list(_draw_slides(data, seed, outlines))
    test = [slide for slide in slides if slide.part == "test"]
    settings = _make_settings(data, (20, 20), outlines)
    scores = [compute_oracle_scores(slide.bag, settings, seed) for slide in test]
    oracle = auc([slide.label for slide in test], [float(own[1] - own[0]) for own in scores])
    return Slides(slides, oracle)


def _draw_slides(data: Mapping[str, Any], seed: int, outlines: Path | None) -> Iterator[Slide]:
    """Slide numbers continue over the parts, so that no slide is in two."""
    number = 0
    for part, count, length in list_lengths(data):
        settings = _make_settings(data, (length, length), outlines)
        for _ in range(count):
            bag, label = make_labeled_bag(settings, seed, number)
            name = f"{seed}-{number}"
            yield Slide(replace(bag, slide_id=name), label, name, part)
            number += 1


def write_cohort_file(path: Path, made: Slides) -> None:
    """Keep a cohort for other workers: reading takes a tenth of the time of making."""
    slides = made.slides
    arrays: dict[str, Any] = {
        key: np.concatenate([getattr(slide.bag, key) for slide in slides]) for key in _ARRAYS
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("wb") as stream:
        np.savez(
            stream,
            lengths=[len(slide.bag) for slide in slides],
            classes=[slide.label for slide in slides],
            names=[slide.patient for slide in slides],
            parts=[slide.part for slide in slides],
            oracle=made.oracle,
            **arrays,
        )


def read_cohort_file(path: Path) -> Slides:
    """Read what ``write_cohort_file`` wrote."""
    with np.load(path, allow_pickle=False) as held:
        cuts = np.cumsum(held["lengths"])[:-1]
        arrays = [np.split(held[key], cuts) for key in _ARRAYS]
        facts = list(zip(held["classes"], held["names"], held["parts"], strict=True))
        oracle = float(held["oracle"])
    slides = []
    for *own, (label, name, part) in zip(*arrays, facts, strict=True):
        bag = Bag(slide_id=str(name), patch_size=TILE, **dict(zip(_ARRAYS, own, strict=True)))
        slides.append(Slide(bag, int(label), str(name), str(part)))
    return Slides(slides, oracle)


def list_lengths(data: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return part, number of slides and their length; lengths are equally far apart as logarithms.

    >>> data = {"slides": {"test": 5}, "instances": [100, 400], "lengths": 3, "longer": []}
    >>> list_lengths(data)
    [('test', 2, 100), ('test', 2, 200), ('test', 1, 400)]
    """
    few, many = data["instances"]
    parts = [(name, count, 1) for name, count in data["slides"].items()]
    parts += [(f"x{n}", data["slides"]["test"] // 2, n) for n in data["longer"]]
    found = []
    for name, count, times in parts:
        steps = np.geomspace(times * few, times * many, data["lengths"])
        lengths = np.unique(np.rint(steps).astype(int))
        shares = np.array_split(np.arange(count), len(lengths))
        pairs = zip(shares, lengths, strict=True)
        found += [(name, len(share), int(length)) for share, length in pairs if len(share)]
    return found


def _make_settings(
    data: Mapping[str, Any], instances: tuple[int, int], outlines: Path | None
) -> SyntheticBagSettings:
    given = {key: _to_tuples(value) for key, value in data["difficulty"].items()}
    if data["real_outlines"]:
        given["outlines"] = _read_outlines(outlines)
    task = type(PRESETS[data["synthetic"]]["medium"])(**given)
    return SyntheticBagSettings(task=task, instances=instances, dim=data["width"])


@cache
def _read_outlines(path: Path | None) -> Polygons:
    if path is None:
        raise SacMILError("real outlines need --outlines FILE, such as camelyon16-tumours.json.gz")
    return read_shapes(path)


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(one) for one in value) if isinstance(value, list) else value


# --- real -----------------------------------------------------------------------------------------


def check_data(data: Mapping[str, Any], place: Place) -> None:
    """Raise an error if what a task needs is not there."""
    if data["real_outlines"]:
        _read_outlines(place.outlines)
    if not data["synthetic"] and not (place.data and (place.data / data["bags"]).is_dir()):
        where = f"in {place.data}" if place.data else "given"
        raise SacMILError(
            f"{data['bags']}: no such folder {where}; give the folder of real data as --data "
            "(python -m studies features makes it)"
        )


def _read_slides(data: Mapping[str, Any], folder: Path) -> list[Slide]:
    cohort = read_cohort(folder / data["labels"], min_patients=1)
    slides = []
    for one in cohort.slides:
        bag = read_bag(folder / data["bags"] / f"{one.slide_id}.h5")
        if data["windows"]:
            slides += list(_cut_windows(bag, one.patient_id, data["windows"]))
        else:
            slides.append(Slide(bag, one.class_index, one.patient_id, "bag"))
    return slides


def _read_survival_slides(data: Mapping[str, Any], folder: Path) -> Slides:
    cohort = read_cohort(folder / data["labels"], min_patients=1, **data["target"])
    slides = []
    for one in cohort.slides:
        bag = read_bag(folder / data["bags"] / f"{one.slide_id}.h5")
        _, event = one.targets
        slides.append(Slide(bag, int(event), one.patient_id, "bag", one.targets))
    return Slides(slides, float("nan"), cohort.task)


def _cut_windows(bag: Bag, patient: str, windows: Mapping[str, int]) -> Iterator[Slide]:
    """Yield windows that may train, windows that may test, and the slide itself.

    The label of a window: whether any of its tiles is positive.
    """
    places = np.rint(bag.patch_coords - bag.patch_coords.min(0)).astype(np.int64)
    truth, side = _get_truth(bag), int(windows["side"])
    for part, step in (("train", int(windows["step"])), ("test", side)):
        for x, y, inside in _list_squares(places, side, step):
            if len(inside) >= windows["min_instances"]:
                name = f"{bag.slide_id}/{x}/{y}/{part}"
                window = replace(bag.take(inside), slide_id=name)
                yield Slide(window, int((truth[inside] > 0).any()), patient, part)
    yield Slide(bag, int((truth > 0).any()), patient, ALL_TILES)


def _list_squares(
    places: npt.NDArray[np.int64], side: int, step: int
) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
    across, down = places.max(0) + 1
    for x in range(0, max(1, across - side + step), step):
        for y in range(0, max(1, down - side + step), step):
            corner = np.array([x, y])
            inside = np.all((places >= corner) & (places < corner + side), axis=1)
            yield x, y, np.flatnonzero(inside)
