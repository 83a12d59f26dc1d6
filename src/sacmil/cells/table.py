"""Read tables of cells: a row per cell with its image, position, type and markers.

Tables are CSV files, packed or not, as QuPath, CellProfiler, mxIF and imaging cytometry pipelines
write them, or AnnData (.h5ad).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.arguments import check_is_file
from sacmil.cells.anndata import read_anndata
from sacmil.cells.raw import RawCells
from sacmil.errors import FormatError, OptionError, suggest_names

if TYPE_CHECKING:
    import pandas

Texts = npt.NDArray[np.object_]

USUAL_COLUMNS: Mapping[str, Sequence[str]] = {
    "image": (
        *("image", "image_id", "image_name", "image_number", "imagenumber", "slide_id", "slide"),
        *("sample", "sample_id", "sampleid", "core", "core_id", "roi", "roi_id", "fov", "fov_id"),
        *("acquisition", "tissueid", "library_id"),
    ),
    "patient": ("patient_id", "patient", "case_id", "pat_id", "patientid", "donor", "donor_id"),
    "x": (
        *("x", "cell_x", "x_um", "x µm", "centroid x µm", "centroid_x", "x_centroid", "centerx"),
        *("pos_x", "x_position", "location_center_x", "inner_x", "global_x"),
    ),
    "y": (
        *("y", "cell_y", "y_um", "y µm", "centroid y µm", "centroid_y", "y_centroid", "centery"),
        *("pos_y", "y_position", "location_center_y", "inner_y", "global_y"),
    ),
    "type": (
        *("cell_type", "celltype", "type", "phenotype", "classification", "class", "cell_class"),
        *("cluster", "cell_cluster", "annotation", "label_name"),
    ),
}
"""Names of columns that are found by themselves, in any case."""
_SIGNS: Sequence[tuple[str, str]] = (
    ("+", "-"),
    ("true", "false"),
    ("positive", "negative"),
    ("pos", "neg"),
    ("yes", "no"),
)
"""Ends of two texts that mean 1 and 0."""
_MAX_SHOWN = 5


@dataclass(frozen=True)
class CellColumns:
    """The columns of a table, by name; those not named are found by their usual names."""

    image: tuple[str, ...] = ()
    """Together they name an image."""
    patient: str | None = None
    x: str | None = None
    y: str | None = None
    type: str | None = None
    markers: tuple[str, ...] = ()
    has_types: bool | None = None
    """Whether types are read; None reads them if they are named, or if no markers are."""


@dataclass(frozen=True)
class CellTable:
    """The cells of a file, N in all."""

    path: Path
    image: Texts
    """(N,)"""
    coords: npt.NDArray[np.float64]
    """(N, 2), centers in the unit of the file."""
    patient: Texts | None = None
    """(N,)"""
    type: Texts | None = None
    """(N,)"""
    markers: npt.NDArray[np.float32] | None = None
    """(N, M)"""
    marker_names: tuple[str, ...] = ()
    others: Mapping[str, Mapping[str, str]] | None = None
    """Further columns that have one value for each image: the value by image."""
    in_microns: bool = False
    """Whether the file says that positions are in µm."""


def read_cell_table(path: str | Path, columns: CellColumns | None = None) -> CellTable:
    """Read a table of cells.

    Args:
        path: .csv, .tsv or .txt, also with .gz, or .h5ad.
        columns: which they are; None finds them by their usual names.

    Raises:
        FormatError: a column is missing, or a cell has no position, type or marker.
    """
    path = Path(path)
    check_is_file(path, "table of cells", FormatError)
    raw = _read_raw(path)
    if not len(raw.frame):
        raise FormatError(f"{path}: has no rows; expected one for each cell")
    return _choose_columns(raw, columns or CellColumns())


def _read_raw(path: Path) -> RawCells:
    if path.suffix.lower() == ".h5ad":
        return read_anndata(path)
    return RawCells(path, _read_csv(path))


def _read_csv(path: Path) -> pandas.DataFrame:
    import pandas

    settings: dict[str, Any] = {"dtype": str, "keep_default_na": False, "compression": "infer"}
    try:
        first = str(pandas.read_csv(path, sep="\0", nrows=1, header=None, **settings).iloc[0, 0])
        separator = max(",;\t", key=first.count)
        header = [name.strip() for name in next(csv.reader([first], delimiter=separator))]
        frame: pandas.DataFrame = pandas.read_csv(
            path, sep=separator, encoding="utf-8-sig", **settings
        )
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not in UTF-8; save it as CSV in UTF-8") from error
    except (ValueError, OSError, EOFError, LookupError) as error:  # pandas' errors are ValueErrors
        reason = " ".join(str(error).split())
        raise FormatError(
            f"{path}: cannot be read as a table ({reason}); expected CSV with a header, or .h5ad"
        ) from error
    if _ends_empty(frame):
        raise FormatError(
            f"{path}: rows have more values than the header's {len(header)}; remove the "
            f"{separator!r} at the end of each row"
        )
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = [name for name in header if header.count(name) > 1]
    if twice:  # pandas renames them
        raise FormatError(f"{path}: two columns are called {twice[0]!r}; rename one")
    return frame


def _ends_empty(frame: pandas.DataFrame) -> bool:
    """Whether all rows have one empty cell too many, so that pandas took the first for a name."""
    import pandas

    is_shifted = not isinstance(frame.index, pandas.RangeIndex)
    return is_shifted and bool((frame.iloc[:, -1] == "").all())


def _choose_columns(raw: RawCells, columns: CellColumns) -> CellTable:
    frame = raw.frame
    patient = _find_column(raw, "patient", columns.patient)
    image = columns.image or tuple(filter(None, [_find_column(raw, "image", None) or patient]))
    if not image:
        raise FormatError(
            f"{raw.path}: no column names the image of a cell; found {_list_names(frame)}; "
            "expected image, sample_id or core, or name it by `image`"
        )
    own = [_require_column(raw, "image", name) for name in image]
    if not columns.image:
        _check_one_image_column(raw, own[0])
    parts = [_clean_names(raw, name, "id") for name in own]
    images = np.array(["_".join(ids) for ids in zip(*parts, strict=True)], dtype=object)
    kinds, names = _find_types(raw, columns), columns.markers
    if not names and kinds is None:
        names = raw.matrix_names
    if not names and kinds is None:
        raise FormatError(
            f"{raw.path}: found neither types nor markers of cells among {_list_names(frame)}; "
            "name a column by `type`, or several by `markers`"
        )
    if len(set(names)) < len(names) or any(raw.matrix_names.count(name) > 1 for name in names):
        twice = next(n for n in names if names.count(n) > 1 or raw.matrix_names.count(n) > 1)
        raise OptionError(f"{raw.path}: the marker {twice!r} occurs twice; name each once")
    coords, used, in_microns = _get_coords(raw, columns)
    patients = None if patient is None else _clean_names(raw, patient, "id")
    _check_one_patient(raw.path, images, patients)
    inside = {*own, patient, kinds, *names, *used}
    others = [str(name) for name in frame if name not in inside]
    return CellTable(
        raw.path,
        images,
        coords,
        patients,
        None if kinds is None else _clean_names(raw, kinds, "type"),
        _get_markers(raw, names) if names else None,
        tuple(names),
        _find_image_values(frame, images, others),
        in_microns,
    )


def _find_column(raw: RawCells, role: str, named: str | None) -> str | None:
    """Return the column of a role: the one that was named, or one of the usual names."""
    if named is not None:
        return _require_column(raw, role, named)
    known = {_fold_name(str(name)): str(name) for name in reversed(list(raw.frame.columns))}
    return next((known[name] for name in USUAL_COLUMNS[role] if name in known), None)


def _fold_name(name: str) -> str:
    """Return a name in small letters, with a unit in one spelling.

    >>> _fold_name("Centroid X (\u03bcm)")
    'centroid x µm'
    """
    lower = name.lower().replace("\u03bc", "µ")  # the Greek letter, and the sign
    return re.sub(r"\s*[\[(](µm|um)[\])]$", " µm", lower)


def _check_one_image_column(raw: RawCells, chosen: str) -> None:
    """Reject a second column that looks like an image and differs within the images found."""
    usual = {*USUAL_COLUMNS["image"]}
    others = [str(name) for name in raw.frame if str(name).lower() in usual and name != chosen]
    for name in others:
        pairs = raw.frame[[chosen, name]].drop_duplicates()
        if len(pairs) > pairs[chosen].nunique():
            raise FormatError(
                f"{raw.path}: {name!r} differs within {chosen!r}, and both may name an image; "
                f"choose by `image`: {chosen}, or {chosen},{name}"
            )


def _find_types(raw: RawCells, columns: CellColumns) -> str | None:
    is_wanted = columns.has_types
    if is_wanted is None:
        is_wanted = columns.type is not None or not columns.markers
    return _find_column(raw, "type", columns.type) if is_wanted else None


def _require_column(raw: RawCells, role: str, name: str) -> str:
    columns = [str(column) for column in raw.frame.columns]
    found = next((each for each in columns if each.lower() == name.lower()), None)
    if name in columns or found:
        return name if name in columns else str(found)
    raise OptionError(
        f"{raw.path}: there is no column {name!r} for `{role}`; {suggest_names(name, columns)}"
    )


def _list_names(frame: pandas.DataFrame) -> str:
    names = [str(name) for name in frame.columns]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _clean_names(raw: RawCells, name: str, what: str) -> Texts:
    """Return the ids or types of a column; whole numbers that were stored as 1.0 become 1."""
    texts = _require_texts(raw, name, what)
    unique, inverse = np.unique(texts.astype(str), return_inverse=True)
    numbers = [_to_float(text) for text in unique]
    if all(number.is_integer() for number in numbers) and any("." in text for text in unique):
        unique = np.array([str(int(number)) for number in numbers])
    return unique.astype(object)[inverse.reshape(-1)]


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _require_texts(raw: RawCells, name: str, what: str) -> Texts:
    texts: Texts = raw.frame[name].str.strip().to_numpy(dtype=object)
    empty = np.flatnonzero((texts == "") | (texts == "NA") | (texts == "nan"))
    if len(empty):
        raise FormatError(
            f"{raw.path}: {len(empty):,} cells have no {what} in column {name!r} (first: row "
            f"{empty[0] + 1}); fill them in, or leave those cells out"
        )
    return texts


def _get_coords(
    raw: RawCells, columns: CellColumns
) -> tuple[npt.NDArray[np.float64], list[str], bool]:
    """Return positions, the columns they were read from, and whether those are in µm."""
    named = columns.x is not None or columns.y is not None
    if raw.coords is not None and not named:
        return _check_finite(raw, raw.coords), [], False
    found = [_find_column(raw, axis, getattr(columns, axis)) for axis in ("x", "y")]
    names = [name for name in found if name is not None]
    if len(names) < 2:
        raise FormatError(
            f"{raw.path}: no columns hold the position of a cell; found {_list_names(raw.frame)}; "
            "expected x and y, or name them by `x` and `y`"
        )
    if names[0] == names[1]:
        raise OptionError(f"`x` and `y` are both the column {names[0]!r}; name two")
    coords = np.stack([_to_numbers(raw, name) for name in names], axis=1)
    in_microns = all(_fold_name(name).endswith(("µm", "_um")) for name in names)
    return _check_finite(raw, coords), names, in_microns


def _check_finite(raw: RawCells, coords: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    wrong = np.flatnonzero(~np.isfinite(coords).all(axis=1))
    if len(wrong):
        raise FormatError(
            f"{raw.path}: {len(wrong):,} cells have no position (first: row {wrong[0] + 1}); "
            "expected x and y for each, leave those cells out"
        )
    return coords


def _to_numbers(raw: RawCells, name: str) -> npt.NDArray[np.float64]:
    """Return a column as numbers; two texts such as CD8+ and CD8- become 1 and 0."""
    import pandas

    texts = raw.frame[name].str.strip()
    numbers = pandas.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
    unknown = np.isnan(numbers)
    if not unknown.any():
        return numbers
    kinds = sorted(set(texts))
    for yes, no in _SIGNS:
        if len(kinds) <= 2 and all(kind.lower().endswith((yes, no)) for kind in kinds):
            return np.array([text.lower().endswith(yes) for text in texts], dtype=np.float64)
    wrong = sorted({str(text) for text in texts[unknown]})
    shown = ", ".join(map(repr, wrong[:_MAX_SHOWN]))
    hint = "expected numbers; a marker may also be two texts such as CD8+ and CD8-"
    if all(text.count(",") == 1 and text.replace(",", "").isdecimal() for text in wrong):
        hint = "write decimals with a point"
    raise FormatError(
        f"{raw.path}: column {name!r} has {unknown.sum():,} cells that are no numbers ({shown}); "
        f"{hint}"
    )


def _get_markers(raw: RawCells, names: Sequence[str]) -> npt.NDArray[np.float32]:
    inside = [name for name in names if name in raw.matrix_names]
    values = np.empty((len(raw.frame), len(names)), np.float32)
    if raw.read_matrix and inside:
        values[:, [names.index(name) for name in inside]] = raw.read_matrix(inside)
    for column, name in enumerate(names):
        if name not in inside:
            values[:, column] = _to_numbers(raw, _require_marker(raw, name))
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        row, column = wrong[0]
        raise FormatError(
            f"{raw.path}: marker {names[column]!r} is missing or infinite in row {row + 1}; "
            "fill it in, or leave that cell out"
        )
    return values


def _require_marker(raw: RawCells, name: str) -> str:
    if raw.matrix_names and name not in raw.frame:
        shown = ", ".join(raw.matrix_names[:20])
        raise OptionError(f"{raw.path}: there is no marker {name!r}; there are {shown}")
    return _require_column(raw, "markers", name)


def _check_one_patient(path: Path, images: Texts, patients: Texts | None) -> None:
    if patients is None:
        return
    pairs = {image: patient for image, patient in zip(images, patients, strict=True)}
    for image, patient in zip(images, patients, strict=True):
        if pairs[image] != patient:
            raise FormatError(
                f"{path}: image {image} belongs to the patients {patient} and {pairs[image]}; if "
                "images are numbered anew for each patient, name both columns by `image`"
            )


def _find_image_values(
    frame: pandas.DataFrame, images: Texts, names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the columns that have one value for each image, such as a grade; blanks count not."""
    found = {}
    every = dict.fromkeys(images, "")
    for name in names:
        pairs = {pair for pair in zip(images, frame[name].str.strip(), strict=True) if pair[1]}
        if pairs and len(pairs) == len({image for image, _ in pairs}):
            found[str(name)] = every | dict(pairs)
    return found
