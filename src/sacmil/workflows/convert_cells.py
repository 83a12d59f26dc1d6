"""Tables of cells to bags, by ``sacmil convert``: a bag for each image."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sacmil.arguments import ProgressCallback, ignore_progress, list_paths, to_output_folder
from sacmil.atomic import write_file
from sacmil.bag import Bag, EncoderId
from sacmil.cells import CellColumns, CellFeatures, CellTable, measure_neighbor_distance
from sacmil.cells.table import read_cell_table
from sacmil.csv_text import escape_cells, restore_cell
from sacmil.errors import FormatError, OptionError, SacMILError
from sacmil.formats import find_bags, read_bag, write_bag
from sacmil.limits import BAG_LIMIT_S
from sacmil.parallel import run_each
from sacmil.units import Level0Px, MicronsPerPixel

SLIDES_CSV = "slides.csv"
CELL_SUFFIXES = (".csv", ".tsv", ".txt", ".gz", ".h5ad")
"""File name endings of tables of cells."""
_ENCODER = "cells"
_MAX_NAME_BYTES = 200
_MAX_MATRIX_MARKERS = 1000
"""More genes than this are not taken unless they are named."""


@dataclass(frozen=True)
class CellConversion:
    """The bags of one conversion of cells."""

    out: Path
    """The folder of the bags and of slides.csv."""
    counts: Mapping[str, int]
    """Number of cells by image."""
    features: tuple[str, ...]
    """Their names."""
    patch_size: float
    """Side of a tile in the unit of the positions: the median distance of neighbors."""
    mpp: float | None
    """Microns per unit of the positions."""


class CellScale(NamedTuple):
    """What bags of cells have in common, so that a model can be applied to both."""

    features: CellFeatures
    patch_size: float
    mpp: float | None


def convert_cells(
    tables: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    image: str | Sequence[str] = (),
    patient: str | None = None,
    x: str | None = None,
    y: str | None = None,
    type: str | None = None,  # the word of every table of cells
    markers: str | Sequence[str] = (),
    arcsinh: float | None = None,
    patch_size: float | None = None,
    mpp: float | None = None,
    like: str | Path | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    limit_s: float = BAG_LIMIT_S,
    on_progress: ProgressCallback = ignore_progress,
) -> CellConversion:
    """Write a bag for each image of some tables of cells, and slides.csv with a row for each.

    A cell is an instance: its features are its type, its markers, or both. Columns that are not
    named are found by their usual names.

    Args:
        tables: a file or several: CSV, packed or not, or .h5ad.
        out: folder for the bags and slides.csv.
        image: the column, or columns, that name the image of a cell.
        patient: the column of the patient.
        x: the column of the position from left to right.
        y: the column of the position from top to bottom.
        type: the column of the cell's type.
        markers: columns, or variables of .h5ad, that are numbers.
        arcsinh: divides markers before their inverse hyperbolic sine is taken; None leaves them.
        patch_size: side of a tile in the unit of the positions; None measures the median distance
            of neighbors.
        mpp: microns per unit of the positions; 1 if they are in µm.
        like: a bag, or a folder of bags, made from cells: features and sizes are taken from there.
        dtype: float16 or float32; None is float16 without markers.
        overwrite: replace bags that exist.
        limit_s: seconds to read one table.
        on_progress: called with the number of images written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> table = "image,x,y,cell_type,grade\\nA,0,0,T,1\\nA,0,5,B,1\\nB,1,1,T,2\\nB,1,4,T,2\\n"
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "cells.csv").write_text(table)
        ...     made = convert_cells(f"{folder}/cells.csv", f"{folder}/bags")
        ...     print(Path(folder, "bags", "slides.csv").read_text().splitlines())
        ['slide_id,cells,grade', 'A,2,1', 'B,2,2']
        >>> made.features, made.patch_size
        (('B', 'T'), 4.0)
    """
    paths, folder = list_paths("tables", tables), to_output_folder(out)
    _check_settings(arcsinh=arcsinh, patch_size=patch_size, mpp=mpp, limit_s=limit_s, dtype=dtype)
    columns = CellColumns(_to_names(image), patient, x, y, type, _to_names(markers))
    known = None if like is None else _read_scale(Path(like), arcsinh, patch_size, mpp)
    if known:
        _check_features_are_known(known.features, columns)
        wanted = columns.markers or known.features.markers
        columns = replace(columns, markers=wanted, has_types=bool(known.features.types))
    found = list(_read_tables(paths, columns, limit_s, on_progress))
    scale = known or _make_scale(found, arcsinh, patch_size, mpp)
    bags = _name_bags(found)
    kind = dtype or ("float32" if scale.features.markers else "float16")
    made = {name: (own, _make_bag(name, own, scale, kind)) for name, own in bags.items()}
    table = _make_slides_table(made)
    if not overwrite:
        _check_nothing_differs(folder, made, table)
    _remove_older_bags(folder, made)
    for done, (name, (_, bag)) in enumerate(made.items(), start=1):
        write_bag(folder / f"{name}.h5", bag)
        on_progress("writing bags", done, len(made))
    write_file(folder / SLIDES_CSV, table)
    counts = {name: len(bag) for name, (_, bag) in made.items()}
    return CellConversion(folder, counts, scale.features.names, scale.patch_size, scale.mpp)


def _check_features_are_known(features: CellFeatures, columns: CellColumns) -> None:
    for name, given, known in (
        ("markers", columns.markers, features.markers),
        ("type", columns.type, features.types),
    ):
        if given and not known:
            raise OptionError(f"the bags of `like` have no {name}; leave out `{name}`")


def is_cell_table(path: Path) -> bool:
    """Whether a file may be a table of cells, by its name."""
    return path.name.lower().endswith(CELL_SUFFIXES)


def _to_names(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(names.split(",")) if isinstance(names, str) and names else tuple(names)


def _check_settings(*, dtype: str | None, **sizes: float | None) -> None:
    for name, value in sizes.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise OptionError(f"`{name}` is {value!r}; expected a number above zero")
    if dtype not in (None, "float16", "float32"):
        raise OptionError(f"`dtype` is {dtype!r}; expected float16 or float32")


def _read_tables(
    paths: Sequence[Path], columns: CellColumns, limit_s: float, on_progress: ProgressCallback
) -> Iterator[CellTable]:
    """Read tables, in processes that a damaged file may crash."""
    tasks = [(path, columns) for path in paths]
    found: dict[int, CellTable] = {}
    for done, outcome in enumerate(run_each(read_task, tasks, limit_s=limit_s), start=1):
        if outcome.failure is not None:
            text = " ".join(outcome.failure.split())
            path = paths[outcome.key]
            raise FormatError(text if str(path) in text else f"{path}: {text}")
        found[outcome.key] = outcome.value
        on_progress("reading tables", done, len(paths))
    yield from (found[number] for number in range(len(paths)))


def read_task(task: tuple[Path, CellColumns]) -> CellTable:
    """Read a table; runs in a worker process."""
    table = read_cell_table(*task)
    if len(table.marker_names) > _MAX_MATRIX_MARKERS and not task[1].markers:
        raise FormatError(
            f"{task[0]}: has {len(table.marker_names):,} markers; expected at most "
            f"{_MAX_MATRIX_MARKERS:,}: choose some by `markers`, or a column by `type`"
        )
    return table


def _make_scale(
    tables: Sequence[CellTable],
    arcsinh: float | None,
    patch_size: float | None,
    mpp: float | None,
) -> CellScale:
    features = CellFeatures.collect(tables, arcsinh)
    if patch_size is None:
        patch_size = measure_neighbor_distance(
            [table.coords[rows] for table in tables for rows in _list_images(table).values()]
        )
        if math.isnan(patch_size):
            raise FormatError(
                f"{tables[0].path}: no image has cells at two places, so that their distance is "
                "unknown; give the distance of neighbors as `patch_size`"
            )
    in_microns = all(table.in_microns for table in tables)
    return CellScale(features, patch_size, 1.0 if mpp is None and in_microns else mpp)


def _read_scale(
    like: Path, arcsinh: float | None, patch_size: float | None, mpp: float | None
) -> CellScale:
    """Return what earlier bags of cells have in common."""
    given = {"arcsinh": arcsinh, "patch_size": patch_size, "mpp": mpp}
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"`{name}` is taken from the bags of `like`; leave one of both out")
    path, *others = find_bags([like])
    bag = read_bag(path)
    for other in others:
        one = read_bag(other)
        if (one.encoder, one.patch_size, one.mpp) != (bag.encoder, bag.patch_size, bag.mpp):
            raise FormatError(
                f"{path} and {other}: have other features or sizes; expected the bags of one "
                "conversion: give one of them as `like`"
            )
    made: Any = (bag.provenance or {}).get("cells")
    try:
        features = CellFeatures(tuple(made["types"]), tuple(made["markers"]), made["arcsinh"])
    except (TypeError, KeyError) as error:
        raise FormatError(
            f"{path}: was not made from a table of cells; expected a bag that "
            "`sacmil convert` made of one, or leave out `like`"
        ) from error
    return CellScale(features, float(bag.patch_size), bag.mpp)


class _Image(NamedTuple):
    """The cells of an image in their table."""

    table: CellTable
    name: str
    rows: Any


def _list_images(table: CellTable) -> dict[str, Any]:
    """Return the rows of each image, in the order of its first cell."""
    names, first, inverse = np.unique(
        table.image.astype(str), return_index=True, return_inverse=True
    )
    order = np.argsort(inverse.reshape(-1), kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(inverse.reshape(-1)))[:-1])
    return {str(names[k]): rows[k] for k in np.argsort(first)}


def _name_bags(tables: Sequence[CellTable]) -> dict[str, _Image]:
    """Return images by the names of their bags."""
    found: dict[str, _Image] = {}
    for table in tables:
        for name, rows in _list_images(table).items():
            own = _make_file_name(name)
            if len(own.encode()) > _MAX_NAME_BYTES:
                raise FormatError(
                    f"{table.path}: the name of image {own[:40]}… is too long for a file; expected "
                    f"at most {_MAX_NAME_BYTES} bytes"
                )
            if own in found:
                other = found[own]
                raise FormatError(
                    f"{table.path}: image {name} and image {other.name} of {other.table.path} "
                    f"would both become {own}.h5; expected names of their own"
                )
            found[own] = _Image(table, name, rows)
    return found


def _make_file_name(image: str) -> str:
    """Return a name for a file; characters that some systems forbid become underscores."""
    return re.sub(r'[\x00-\x1f/\\:*?"<>|]', "_", image).lstrip(".") or "_"


def _make_bag(name: str, image: _Image, scale: CellScale, dtype: str) -> Bag:
    table, _, rows = image
    part = replace(
        table,
        coords=table.coords[rows],
        type=None if table.type is None else table.type[rows],
        markers=None if table.markers is None else table.markers[rows],
    )
    features = scale.features
    values = features.compute(part)
    if dtype == "float16" and values.size and np.abs(values).max() > np.finfo(np.float16).max:
        raise FormatError(
            f"{table.path}: markers of image {image.name} reach {np.abs(values).max():g}, more "
            "than float16 can hold; use float32, or `arcsinh`"
        )
    made = {
        "types": list(features.types),
        "markers": list(features.markers),
        "arcsinh": features.arcsinh,
    }
    return Bag(
        name,
        values.astype(dtype),
        part.coords - scale.patch_size / 2,  # of the upper left corner
        Level0Px(scale.patch_size),
        None if scale.mpp is None else MicronsPerPixel(scale.mpp),
        encoder=EncoderId(_ENCODER, features.digest),
        provenance={"cells": made, "mpp": scale.mpp},  # without µm, sizes are compared in units
    )


def _make_slides_table(made: Mapping[str, tuple[_Image, Bag]]) -> str:
    """Return a table with a row for each image, ready for a column of labels."""
    images = [image for image, _ in made.values()]
    shared = [set(image.table.others or {}) for image in images]
    others = [name for name in images[0].table.others or {} if all(name in each for each in shared)]
    has_patients = all(image.table.patient is not None for image in images)
    taken = {"slide_id", "cells", *(["patient_id"] if has_patients else [])}
    others = [name for name in others if name not in taken]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["slide_id", *(["patient_id"] if has_patients else []), "cells", *others])
    for name, (image, bag) in made.items():
        patient = [] if image.table.patient is None else [image.table.patient[image.rows[0]]]
        values = [(image.table.others or {})[other][image.name] for other in others]
        own = patient if has_patients else []
        writer.writerow(escape_cells([name, *own, str(len(bag)), *values]))
    return text.getvalue()


def _check_nothing_differs(
    folder: Path, made: Mapping[str, tuple[_Image, Bag]], table: str
) -> None:
    """Reject a folder whose files would be replaced by others."""
    path = folder / SLIDES_CSV
    if path.exists() and path.read_text(encoding="utf-8") != table:
        raise OptionError(f"{path}: exists and differs; choose another `out`, or add `overwrite`")
    for name, (_, bag) in made.items():
        path = folder / f"{name}.h5"
        if path.exists() and not _is_same(read_bag(path), bag):
            raise OptionError(
                f"{path}: exists and differs; choose another `out`, or add `overwrite`"
            )


def _remove_older_bags(folder: Path, made: Mapping[str, Any]) -> None:
    """Remove the bags of an earlier conversion that this one does not replace."""
    try:
        rows = csv.DictReader((folder / SLIDES_CSV).read_text(encoding="utf-8").splitlines())
        names = [restore_cell(row["slide_id"]) for row in rows]
    except (OSError, ValueError, LookupError, TypeError, csv.Error):
        return
    for name in names:
        path = folder / f"{name}.h5"
        if name not in made and _make_file_name(name) == name and _is_of_cells(path):
            path.unlink()


def _is_of_cells(path: Path) -> bool:
    """Whether a file is a bag that was made from a table of cells."""
    try:
        return "cells" in (read_bag(path).provenance or {})
    except (SacMILError, OSError):
        return False


def _is_same(one: Bag, other: Bag) -> bool:
    arrays = (
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("features", "coords")
    )
    facts = (
        getattr(one, name) == getattr(other, name) for name in ("patch_size", "mpp", "encoder")
    )
    return all(arrays) and all(facts)
