"""Make the datasets of cells in sacmil's own form, from tables of published images; resumable.

The input has the tables that ``../shared``'s README describes: ``tnbc_mibi_cells.csv.gz`` and
``breast_imc_jackson100_cells.csv.gz``, ``breast_ki67_622_cells.csv.gz`` and
``nsclc_mif_cells.csv.gz``. The output has, for each SET, the cohort ``cells/SET/labels.csv`` and
the bags ``cells/SET/bags/NAME.h5``:

- ``tnbc-N``: from every patient N tumour cells and N immune cells, drawn eight times; the two kinds
  are the features, so that size and composition are the same for all. N is 100 to 800;
- ``tnbc-200-thinned``: 200 of each kind, and the same median distance of neighbors for all;
- ``tnbc-400-shuffled``: the same with kinds dealt anew to the positions, a control;
- ``tnbc``, ``imc``, ``ki67``: all cells with all types, or with the marker; labels are the pattern
  of the tumour, and grade 3 against 1 and 2;
- ``ki67``, ``nsclc``: ``survival.csv`` has the time until recurrence, or death, and the event.

Python and numpy draw with fixed seeds, so the bags are the same everywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from sacmil.bag import Bag, EncoderId
from sacmil.cells import measure_neighbor_distance
from sacmil.cohorts.cohort import Cohort, LabeledSlide, write_cohort
from sacmil.formats import write_bag
from sacmil.units import Level0Px
from sacmil.workflows.convert_cells import convert_cells

Floats = npt.NDArray[np.float64]

COUNTS = (100, 200, 400, 800)
DRAWS = 8
"""Of each patient."""
MAIN, THINNED = 400, 200
"""Counts of the controls."""
TUMOUR = "Tumor"
NOT_IMMUNE = (TUMOUR, "Mesenchymal", "Endothelial", "Other")
KINDS = EncoderId("tumour or immune")
PIXELS = Level0Px(18.3)
"""Side of a tile: the median distance of neighbors of all cells of TNBC."""
_TOLERANCE, _QUANTILE, _SMALLEST_STEP = 0.01, 0.8, 1e-3
"""Of thinning: relative difference of the median distance; share of draws that are closer together
than what is aimed at; step of the gap, in that distance."""


class Drawn(NamedTuple):
    """Cells of a patient."""

    coords: Floats
    """(N, 2)"""
    is_tumour: npt.NDArray[np.bool_]
    """(N,)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--data", type=Path, required=True, help="folder of the tables of cells")
    parser.add_argument("--out", type=Path, required=True, help="folder for the datasets")


def run(options: argparse.Namespace) -> None:
    """Make every dataset that is not there yet."""
    cells = pd.read_csv(options.data / "tnbc_mibi_cells.csv.gz")
    for name, slides in make_drawn_sets(cells):
        write_set(options.out / "cells" / name, slides)
    for name, (file, label, positive, markers) in WHOLE_SETS.items():
        write_whole_set(options.out / "cells" / name, options.data / file, label, positive, markers)
    for survival in SURVIVAL_SETS:
        write_survival_set(
            options.out / "cells" / survival.name, options.data / survival.file, survival
        )


# --- drawn cells of TNBC --------------------------------------------------------------------------


class DrawnSlide(NamedTuple):
    """A bag of drawn cells and its label."""

    name: str
    patient: str
    label: int
    cells: Drawn


def make_drawn_sets(cells: pd.DataFrame) -> Iterator[tuple[str, list[DrawnSlide]]]:
    """Yield the datasets of drawn cells by name."""
    for count in COUNTS:
        yield f"tnbc-{count}", draw_patients(cells, count)
    main = draw_patients(cells, MAIN)
    yield f"tnbc-{MAIN}-shuffled", [slide._replace(cells=shuffle(slide)) for slide in main]
    plain = draw_patients(cells, THINNED)
    thinned = draw_patients(cells, THINNED, distance=find_distance(plain))
    yield f"tnbc-{THINNED}-thinned", leave_out_others(thinned, find_distance(plain))


def draw_patients(cells: pd.DataFrame, count: int, distance: float = 0.0) -> list[DrawnSlide]:
    """Draw cells of every patient that has enough of both kinds.

    Args:
        cells: of all patients, with patient, x, y, type and label.
        count: of each kind.
        distance: the median distance of neighbors that is aimed at; 0 takes any.
    """
    slides = []
    for patient, own in cells.groupby("patient"):
        tumour = own["type"] == TUMOUR
        immune = ~own["type"].isin(NOT_IMMUNE)
        if min(tumour.sum(), immune.sum()) < count:
            continue
        pools = [own.loc[kind, ["x", "y"]].to_numpy(np.float64) for kind in (tumour, immune)]
        label = int(own["label"].iloc[0] == "compartmentalised")
        for draw in range(DRAWS):
            random = np.random.default_rng([int(str(patient)), count, draw])
            drawn = draw_cells(pools, count, random, distance)
            slides.append(DrawnSlide(f"{patient}-{draw}", str(patient), label, drawn))
    return slides


def draw_cells(
    pools: list[Floats], count: int, random: np.random.Generator, distance: float
) -> Drawn:
    """Draw as many cells of each kind, in random order.

    With a distance, cells are taken only if they keep a gap to those before. The gap is searched
    for which the median distance of neighbors is the one aimed at.
    """
    orders = [random.permutation(len(pool)) for pool in pools]
    drawn = _take(pools, orders, count, 0.0)
    assert drawn is not None
    low, high = 0.0, 1.5 * distance
    best = drawn
    while high - low > _SMALLEST_STEP * distance and _find_difference(best, distance) > _TOLERANCE:
        gap = (low + high) / 2
        tried = _take(pools, orders, count, gap)
        if tried and _find_difference(tried, distance) < _find_difference(best, distance):
            best = tried
        too_far = tried is None or measure_neighbor_distance([tried.coords]) > distance
        low, high = (low, gap) if too_far else (gap, high)
    drawn = best
    mixed = random.permutation(2 * count)
    return Drawn(drawn.coords[mixed], drawn.is_tumour[mixed])


def _find_difference(drawn: Drawn, distance: float) -> float:
    """Return the relative difference of the median distance of neighbors from another."""
    return abs(measure_neighbor_distance([drawn.coords]) / distance - 1)


def _take(
    pools: list[Floats], orders: list[npt.NDArray[np.int64]], count: int, gap: float
) -> Drawn | None:
    """Take cells of both kinds in turn that keep a gap; None if there are not enough."""
    chosen: list[list[int]] = [[], []]
    if gap == 0:
        chosen = [order[:count].tolist() for order in orders]
    else:
        everything = np.concatenate(pools)
        starts = (0, len(pools[0]))
        near = cKDTree(everything).query_ball_point(everything, gap)
        is_free = np.ones(len(everything), dtype=bool)
        waiting = [iter(order.tolist()) for order in orders]
        for kind in [0, 1] * count:
            index = next((n for n in waiting[kind] if is_free[starts[kind] + n]), None)
            if index is None:
                return None
            chosen[kind].append(index)
            is_free[near[starts[kind] + index]] = False
    coords = np.concatenate([pool[own] for pool, own in zip(pools, chosen, strict=True)])
    return Drawn(coords, np.arange(2 * count) < count)


def find_distance(slides: list[DrawnSlide]) -> float:
    """Return a median distance of neighbors that most slides can be thinned to."""
    found = [measure_neighbor_distance([slide.cells.coords]) for slide in slides]
    return float(np.quantile(found, _QUANTILE))


def leave_out_others(slides: list[DrawnSlide], distance: float) -> list[DrawnSlide]:
    """Leave out draws that thinning could not bring to the distance."""
    return [slide for slide in slides if _find_difference(slide.cells, distance) < _TOLERANCE]


def shuffle(slide: DrawnSlide) -> Drawn:
    """Deal the kinds anew to the positions."""
    random = np.random.default_rng([int(part) for part in slide.name.split("-")])
    return slide.cells._replace(is_tumour=random.permutation(slide.cells.is_tumour))


def write_set(folder: Path, slides: list[DrawnSlide]) -> None:
    """Write the bags and the table of a dataset; a complete one has its table."""
    if (folder / "labels.csv").exists():
        return
    for name, _, _, cells in slides:
        kinds = np.stack([cells.is_tumour, ~cells.is_tumour], axis=1).astype(np.float16)
        write_bag(
            folder / "bags" / f"{name}.h5",
            Bag(name, kinds, cells.coords, PIXELS, encoder=KINDS),
        )
    table = tuple(LabeledSlide(name, patient, label) for name, patient, label, _ in slides)
    write_cohort(folder / "labels.csv", Cohort(table, ("0", "1")))
    print(f"{folder.name}: {len({slide.patient for slide in slides})} patients, {len(slides)} bags")


# --- whole images ---------------------------------------------------------------------------------

WHOLE_SETS: Mapping[str, tuple[str, str, str, str]] = {
    "tnbc": ("tnbc_mibi_cells.csv.gz", "label", "compartmentalised", ""),
    "imc": ("breast_imc_jackson100_cells.csv.gz", "tumor_grade", "3", ""),
    "ki67": ("breast_ki67_622_cells.csv.gz", "HistologicalGrade", "3", "Marker"),
}
"""File, column of the label, its positive value, and the marker, if cells have one."""
MARKER_SCALE = 1000.0


def write_whole_set(folder: Path, table: Path, label: str, positive: str, markers: str) -> None:
    """Convert a table as users do, and write the labels of images that have one."""
    if (folder / "labels.csv").exists():
        return
    scale = MARKER_SCALE if markers else None
    made = convert_cells(table, folder / "bags", markers=markers, arcsinh=scale, overwrite=True)
    images = pd.read_csv(made.out / "slides.csv", dtype=str, keep_default_na=False)
    known = images[images[label].str.len() > 0]
    slides = tuple(
        LabeledSlide(str(name), str(patient), int(value == positive))
        for name, patient, value in zip(
            known["slide_id"], known["patient_id"], known[label], strict=True
        )
    )
    write_cohort(folder / "labels.csv", Cohort(slides, ("0", "1")))
    print(f"{folder.name}: {len(slides)} bags, {sum(one.class_index for one in slides)} positive")


class SurvivalSet(NamedTuple):
    """Images of patients who are followed up."""

    name: str
    file: str
    time: str
    """Column, like the next."""
    event: str
    months: float
    """In a unit of the time."""
    markers: str
    image: str
    arcsinh: float | None


NSCLC_MARKERS = ("ck", "cd8", "cd14", "other", "cd19", "cd4")
SURVIVAL_SETS = (
    SurvivalSet(
        name="ki67",
        file=WHOLE_SETS["ki67"][0],
        time="RECFREESURV_MO",
        event="RECURRENCE",
        months=1.0,
        markers="Marker",
        image="tissueID",
        arcsinh=MARKER_SCALE,
    ),
    SurvivalSet(
        name="nsclc",
        file="nsclc_mif_cells.csv.gz",
        time="survival_days",
        event="survival_status",
        months=12 / 365.25,
        markers=",".join(f"phenotype_{name}" for name in NSCLC_MARKERS),
        image="patient_id,image_id",
        arcsinh=None,
    ),
)


def write_survival_set(folder: Path, table: Path, survival: SurvivalSet) -> None:
    """Convert a table, unless its bags are there, and write months and events of its images."""
    if (folder / "survival.csv").exists():
        return
    images = folder / "bags" / "slides.csv"
    if not images.exists():
        convert_cells(
            table,
            folder / "bags",
            markers=survival.markers,
            image=survival.image,
            arcsinh=survival.arcsinh,
            overwrite=True,
        )
    known = pd.read_csv(images, dtype={"slide_id": str, "patient_id": str})
    found = pd.DataFrame(
        {
            "slide_id": known["slide_id"],
            "patient_id": known["patient_id"],
            "months": (known[survival.time] * survival.months).round(2),
            "event": known[survival.event].astype(int),
        }
    )
    found.to_csv(folder / "survival.csv", index=False)
    patients = found.groupby("patient_id")["event"].first()
    print(f"{folder.name}: {len(found)} bags, {len(patients)} patients, {patients.sum()} events")
