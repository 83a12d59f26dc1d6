"""Large cohorts: a rerun of a finished extraction, the start of crossval, and split.

Each is compared with reading the same files once, in the same run. Seconds are those of the
processor, which other programs on the machine hardly lengthen; worker processes are included.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sacmil import Bag, read_bag, write_bag
from sacmil.cohorts.bags import BagIndex
from sacmil.cohorts.cohort import read_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_cohort import write_splits
from sacmil.cohorts.splits import make_folds
from sacmil.extraction import ExtractionSettings, extract_slides
from sacmil.extraction.slide_request import SlideRequest, read_stamp
from sacmil.extraction.table import ExtractionTable, FinishedSlides
from sacmil.slides.search import find_slides
from sacmil.slides.tiling import TileSpec
from sacmil.training.bag_checks import check_and_hash_bags, read_width
from sacmil.training.config import make_config
from sacmil.training.run_folder import open_run
from sacmil.training.train import RunPlan, make_jobs

_SETTINGS = ExtractionSettings(tiles=TileSpec(mpp=None, patch_size=64), tissue_mode="all")
_HASHING, _RERUN = "reading and hashing bags", "a rerun's check"


def main(arguments: list[str] | None = None) -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        _rerun(Path(folder) / "extract", options.slides)
        shutil.rmtree(Path(folder) / "extract")
        _crossval(Path(folder) / "crossval", options.slides)
        _split(Path(folder) / "split", options.rows)


def _seconds(call: Callable[[], object]) -> float:
    start = _processor_seconds()
    call()
    return _processor_seconds() - start


def _processor_seconds() -> float:
    """Of this process and of its worker processes that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _print(name: str, seconds: float, reading: float) -> None:
    print(f"  {name:<44}{seconds:8.2f} s{seconds / reading:8.2f} x reading the files")


# --- extraction ----------------------------------------------------------------------------------


def _rerun(folder: Path, slides: int) -> None:
    """Of slides that were all cut into tiles."""
    out = folder / "out"
    _finish(folder / "slides", out, slides)
    files = [path for path in folder.rglob("*") if path.is_file()]
    reading = _seconds(lambda: [path.read_bytes() for path in files])

    def rerun() -> None:
        rows = extract_slides(
            find_slides([folder / "slides"]), out, settings=_SETTINGS, until="tiles"
        )
        assert len(rows) == slides
        assert all(row.status == "done" for row in rows)

    print(f"extraction of {slides:,} finished slides")
    _print("rerun", _seconds(rerun), reading)


def _finish(source: Path, out: Path, slides: int) -> None:
    """One slide extracted, and copied with all that was made of it."""
    from PIL import Image

    source.mkdir(parents=True)
    first = source / "slide_0.png"
    pixels = np.random.default_rng(0).integers(90, 200, (256, 256, 3), np.uint8)
    Image.fromarray(pixels).save(first)
    (row,) = extract_slides([first], out, settings=_SETTINGS, until="tiles")
    assert row.status == "done", row.reason
    Image.new("RGB", (8, 8)).save(out / "tissue" / "slide_0.png")  # previews are large
    made = [first, *out.rglob("slide_0.*")]
    paths = [source / f"slide_{number}.png" for number in range(slides)]
    for path in paths[1:]:
        for file in made:
            shutil.copyfile(file, file.with_name(path.stem + file.suffix))
    record, finished = ExtractionTable(out / "extraction.csv"), FinishedSlides(out)
    for path in paths:
        request = SlideRequest(path=path, settings=_SETTINGS, out=out)
        record.write(replace(row, slide_id=path.stem, path=str(path)))
        finished.add(request, (read_stamp(path), read_stamp(request.outline_path)))
    record.finish()
    finished.write()


# --- training ------------------------------------------------------------------------------------


def _crossval(folder: Path, slides: int) -> None:
    bags, table = folder / "bags", folder / "table.csv"
    ids = [f"slide_{number}" for number in range(slides)]
    for number, slide_id in enumerate(ids):
        features = np.full((4, 8), number, np.float32)
        coords = np.array([[0, 0], [256, 0], [0, 256], [256, 256]])
        _write_unforced(bags / f"{slide_id}.h5", Bag(slide_id, features, coords, 256))
    _write_table(table, ids)
    files = [bags / f"{slide_id}.h5" for slide_id in ids]
    reading = _seconds(lambda: [read_bag(file) for file in files])
    print(f"crossval of {slides:,} bags, until the first epoch")
    steps = {}
    for name, seconds in _steps_of_crossval(folder, bags, table):
        _print(name, seconds, reading)
        steps[name] = seconds
    _print("all of it", sum(steps.values()), reading)
    _print("all of it but hashing and the rerun", _sum_first_checks(steps), reading)


def _sum_first_checks(steps: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in steps.items() if name not in (_HASHING, _RERUN))


def _steps_of_crossval(folder: Path, bags: Path, table: Path) -> Iterator[tuple[str, float]]:
    def timed(name: str) -> tuple[str, float]:
        nonlocal start
        now = _processor_seconds()
        spent, start = now - start, now
        return name, spent

    start = _processor_seconds()
    index = BagIndex(bags)
    cohort = read_cohort(table, extra_check=index.find_problems)
    yield timed("table and headers of bags")
    dataset = Dataset(cohort, index)
    located = dataset.bags
    yield timed("dataset")
    folds = make_folds(cohort, 5)
    yield timed("folds")
    assert read_width(next(iter(located.values())))
    yield timed("width of the first bag")
    with open_run(folder / "run", cohort, folds, "crossval"):
        yield timed("run folder")
        hashes = check_and_hash_bags(folder / "run", located, lambda *_: None)
        yield timed(_HASHING)
        config = {"abmil": make_config({"model": "abmil"}, [])}
        plan = RunPlan(folder / "run", dataset.with_hashes(hashes), folds, config, [0])
        parts = list(make_jobs(plan))
        todo = [part for part in parts if not part.is_finished()]
        assert [part.fingerprint for part in todo]
        yield timed("parts")
    start = _processor_seconds()
    with open_run(folder / "run", cohort, folds, "crossval"):
        check_and_hash_bags(folder / "run", located, lambda *_: None)
    yield timed(_RERUN)


def _write_unforced(path: Path, bag: Bag) -> None:
    """Without waiting for the disk, which is not what is measured."""
    import sacmil.atomic as atomic

    force = atomic.force_to_disk
    atomic.force_to_disk = lambda _: None
    try:
        write_bag(path, bag)
    finally:
        atomic.force_to_disk = force


def _write_table(path: Path, ids: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "patient_id", "label"])
        writer.writerows(
            [name, f"patient_{number // 2}", (number // 2) % 3] for number, name in enumerate(ids)
        )


# --- folds ---------------------------------------------------------------------------------------


def _split(folder: Path, rows: int) -> None:
    table = folder / "table.csv"
    _write_table(table, [f"slide_{number}" for number in range(rows)])

    def read() -> None:
        with table.open(newline="", encoding="utf-8") as file:
            list(csv.reader(file))

    def split() -> None:
        cohort = read_cohort(table)
        write_splits(folder / "splits", make_folds(cohort, 5), cohort)

    reading = _seconds(read)
    print(f"split of {rows:,} rows")
    _print("five folds", _seconds(split), reading)


if __name__ == "__main__":
    with warnings.catch_warnings():
        main()
