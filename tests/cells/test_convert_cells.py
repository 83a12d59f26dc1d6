"""Tables of cells become bags, and what cannot is named."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sacmil import Bag, Dataset, convert_cells, read_bag, read_cohort, write_bag
from sacmil.cells import CellColumns, measure_neighbor_distance, read_cell_table
from sacmil.errors import FormatError, OptionError
from sacmil.training.train import train

RANDOM = np.random.default_rng(0)
COLUMNS = ["image", "patient_id", "x", "y", "cell_type", "CD8", "KI67", "grade", "cell_id"]
ROWS = [
    [
        f"image-{image}",
        f"p{image // 2}",
        *np.round(RANDOM.random(2) * 90, 2),
        ["tumour", "T cell", "B cell"][RANDOM.integers(3)],
        ["CD8+", "CD8-"][RANDOM.integers(2)],
        round(RANDOM.random() * 50, 3),
        image // 2 % 2 + 1,
        cell,
    ]
    for image in range(4)
    for cell in range(40)
]


def write_table(path: Path, rows: list[list[Any]] = ROWS, header: list[str] = COLUMNS) -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter="\t" if ".tsv" in path.name else ",").writerows([header, *rows])
    raw = text.getvalue().encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.fixture(autouse=True)
def _here(inline_workers: None) -> None:
    """Reads tables in this process; test_a_damaged_file... reads them as users do."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "cells.csv")


def change(column: str, value: Any, row: int = 3) -> list[list[Any]]:
    rows = [list(each) for each in ROWS]
    rows[row][COLUMNS.index(column)] = value
    return rows


@pytest.mark.parametrize("name", ["cells.csv", "cells.tsv", "cells.csv.gz", "cells.tsv.gz"])
def test_every_image_becomes_a_bag_of_its_cells(tmp_path: Path, name: str) -> None:
    made = convert_cells(write_table(tmp_path / name), tmp_path / "bags")
    assert made.features == ("B cell", "T cell", "tumour")
    assert made.counts == {f"image-{n}": 40 for n in range(4)}
    for image in range(4):
        bag = read_bag(tmp_path / "bags" / f"image-{image}.h5")
        own = ROWS[40 * image : 40 * image + 40]
        np.testing.assert_allclose(
            bag.coords + made.patch_size / 2, [row[2:4] for row in own], rtol=1e-12
        )
        assert [made.features[k] for k in bag.features.argmax(1)] == [row[4] for row in own]
        assert (bag.features.sum(1) == 1).all()
        assert bag.features.dtype == np.float16
        assert float(bag.patch_size) == made.patch_size


def test_the_table_of_images_has_what_is_the_same_for_all_cells_of_each(table, tmp_path) -> None:
    convert_cells(table, tmp_path / "bags")
    with (tmp_path / "bags" / "slides.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["slide_id", "patient_id", "cells", "grade"]
    assert [row["grade"] for row in rows] == ["1", "1", "2", "2"]
    assert [row["patient_id"] for row in rows] == ["p0", "p0", "p1", "p1"]


def test_models_train_on_the_bags_and_the_table(tmp_path: Path) -> None:
    rows = [[f"i{n}", f"p{n}", *row[2:7], n % 2, row[8]] for n in range(8) for row in ROWS[:30]]
    convert_cells(write_table(tmp_path / "cells.csv", rows), tmp_path / "bags")
    cohort = read_cohort(tmp_path / "bags" / "slides.csv", label="grade")
    data, settings = Dataset(cohort, tmp_path / "bags"), {"folds": 3, "options": {"epochs": 1}}
    run = train(data, "abmil", out=tmp_path / "run", **settings)
    assert set(run.predictions.split) == {"test"}


def test_the_side_of_a_tile_is_the_median_distance_of_neighbors(table, tmp_path) -> None:
    expected = []
    for image in range(4):
        own = np.array([row[2:4] for row in ROWS[40 * image : 40 * image + 40]], dtype=float)
        distance = np.linalg.norm(own[:, None] - own, axis=2)
        expected += (distance + np.diag(np.full(40, np.inf))).min(1).tolist()
    made = convert_cells(table, tmp_path / "bags")
    assert made.patch_size == pytest.approx(np.median(expected), rel=1e-12)
    assert convert_cells(table, tmp_path / "other", patch_size=7.5).patch_size == 7.5
    assert np.isnan(measure_neighbor_distance([np.zeros((3, 2))]))


def test_markers_are_numbers_or_signs(table, tmp_path) -> None:
    made = convert_cells(table, tmp_path / "bags", markers=("KI67", "CD8"), arcsinh=5)
    assert made.features == ("KI67", "CD8")
    bag = read_bag(tmp_path / "bags" / "image-1.h5")
    own = ROWS[40:80]
    np.testing.assert_allclose(bag.features[:, 0], np.arcsinh([row[6] / 5 for row in own]), 1e-6)
    np.testing.assert_allclose(
        bag.features[:, 1], np.arcsinh([(row[5] == "CD8+") / 5 for row in own]), 1e-6
    )
    assert bag.features.dtype == np.float32


def test_types_and_markers_go_together(table, tmp_path) -> None:
    made = convert_cells(table, tmp_path / "bags", type="cell_type", markers="KI67")
    assert made.features == ("B cell", "T cell", "tumour", "KI67")


def test_new_tables_get_the_features_and_sizes_of_earlier_bags(table, tmp_path) -> None:
    first = convert_cells(table, tmp_path / "bags", type="cell_type", markers="KI67", mpp=0.5)
    kept = [row for row in ROWS if row[4] != "tumour"]  # one type fewer, and farther apart
    other = write_table(tmp_path / "new.csv", kept)
    made = convert_cells(other, tmp_path / "new", like=tmp_path / "bags")
    assert made.features == first.features
    assert (made.patch_size, made.mpp) == (first.patch_size, 0.5)
    old, new = (read_bag(tmp_path / where / "image-2.h5") for where in ("bags", "new"))
    assert old.encoder == new.encoder
    rows = change("cell_type", "neuron")
    with pytest.raises(FormatError, match=r"cells of the types neuron; expected B cell, T cell"):
        convert_cells(write_table(table, rows), tmp_path / "x", like=tmp_path / "bags")
    with pytest.raises(OptionError, match="`mpp` is taken from the bags of `like`"):
        convert_cells(table, tmp_path / "x", like=tmp_path / "bags", mpp=1)


def test_bags_to_be_like_must_be_of_one_conversion(table, tmp_path) -> None:
    convert_cells(table, tmp_path / "bags")
    with pytest.raises(OptionError, match="the bags of `like` have no markers"):
        convert_cells(table, tmp_path / "x", like=tmp_path / "bags", markers="KI67")
    convert_cells(table, tmp_path / "other", patch_size=3)
    (tmp_path / "other" / "image-0.h5").rename(tmp_path / "bags" / "zz.h5")
    with pytest.raises(FormatError, match=r"image-0\.h5 and .*zz\.h5: have other"):
        convert_cells(table, tmp_path / "x", like=tmp_path / "bags")
    convert_cells(table, tmp_path / "x", like=tmp_path / "bags" / "image-1.h5")


def test_sizes_without_microns_are_compared_in_the_unit_of_the_table(table, tmp_path) -> None:
    convert_cells(table, tmp_path / "bags", patch_size=3)
    convert_cells(table, tmp_path / "um", patch_size=3, mpp=0.5)
    assert read_bag(tmp_path / "bags" / "image-0.h5").patch_size_px == 3
    assert read_bag(tmp_path / "um" / "image-0.h5").patch_size_px is None
    assert read_bag(tmp_path / "um" / "image-0.h5").patch_size_um == 1.5


def test_a_blank_does_not_count_as_another_value(table, tmp_path) -> None:
    convert_cells(write_table(table, change("grade", "")), tmp_path / "bags")
    assert (tmp_path / "bags" / "slides.csv").read_text().splitlines()[1] == "image-0,p0,40,1"


def test_row_names_before_the_columns_are_ignored(tmp_path: Path) -> None:
    path = write_table(tmp_path / "cells.csv", [[n, *row] for n, row in enumerate(ROWS)])
    assert convert_cells(path, tmp_path / "bags").features == ("B cell", "T cell", "tumour")


def test_overwriting_removes_the_bags_of_the_conversion_before(table, tmp_path) -> None:
    convert_cells(table, tmp_path / "bags")
    write_bag(tmp_path / "bags" / "own.h5", Bag("own", np.eye(3), np.eye(3, 2) * 9, 9))
    with (tmp_path / "bags" / "slides.csv").open("a") as file:
        file.write("own,p9,3,1\ngone,p9,3,1\n")  # a user's own bag stays, even if it is listed
    rest = write_table(tmp_path / "rest.csv", [row for row in ROWS if row[0] != "image-1"])
    convert_cells(rest, tmp_path / "bags", overwrite=True)
    found = sorted(path.name for path in (tmp_path / "bags").glob("*.h5"))
    assert found == ["image-0.h5", "image-2.h5", "image-3.h5", "own.h5"]


def test_other_features_are_another_encoder(table, tmp_path) -> None:
    for name, given in (("a", {}), ("b", {"markers": "KI67"}), ("c", {"markers": "CD8"})):
        convert_cells(table, tmp_path / name, **given)
    convert_cells(table, tmp_path / "d", markers="KI67", arcsinh=5)
    found = {read_bag(tmp_path / name / "image-0.h5").encoder for name in "abcd"}
    assert len(found) == 4


def test_ids_that_were_stored_as_numbers_with_a_point_are_whole(tmp_path: Path) -> None:
    rows = [[float(row[0][-1]), *row[1:]] for row in ROWS]
    made = convert_cells(write_table(tmp_path / "cells.csv", rows), tmp_path / "bags")
    assert list(made.counts) == ["0", "1", "2", "3"]


def test_types_that_are_numbers_have_one_name_each(tmp_path: Path) -> None:
    """One table stores them with a point, the other without."""
    kinds = {row[4]: number for number, row in enumerate(ROWS)}
    tables = []
    for name, make in (("a", float), ("b", int)):
        rows = [[f"{name}{row[0]}", *row[1:4], make(kinds[row[4]]), *row[5:]] for row in ROWS]
        tables.append(write_table(tmp_path / f"{name}.csv", rows))
    made = convert_cells(tables, tmp_path / "bags")
    assert set(made.features) == {str(number) for number in kinds.values()}


def test_images_may_be_numbered_anew_for_each_patient(tmp_path: Path) -> None:
    rows = [[int(row[0][-1]) % 2, *row[1:]] for row in ROWS]
    path = write_table(tmp_path / "cells.csv", rows)
    with pytest.raises(FormatError, match="image 0 belongs to the patients p0 and p1"):
        convert_cells(path, tmp_path / "bags")
    made = convert_cells(path, tmp_path / "bags", image=("patient_id", "image"))
    assert list(made.counts) == ["p0_0", "p0_1", "p1_0", "p1_1"]


def test_without_a_column_of_images_a_patient_is_one(tmp_path: Path) -> None:
    path = write_table(tmp_path / "cells.csv", [row[1:] for row in ROWS], COLUMNS[1:])
    assert list(convert_cells(path, tmp_path / "bags").counts) == ["p0", "p1"]


@pytest.mark.parametrize("unit", ["Centroid {} µm", "Centroid {} (µm)", "{} [\u03bcm]", "{}_um"])
def test_columns_of_qupath_are_known(tmp_path: Path, unit: str) -> None:
    header = ["Image", "Object ID", "Classification", unit.format("X"), unit.format("Y")]
    rows = [[row[0], row[8], row[4], *row[2:4]] for row in ROWS]
    made = convert_cells(write_table(tmp_path / "cells.tsv", rows, header), tmp_path / "bags")
    assert made.mpp == 1.0
    assert made.features == ("B cell", "T cell", "tumour")


def test_names_of_images_are_safe_as_file_names(tmp_path: Path) -> None:
    rows = [["../a:b/c", *row[1:]] for row in ROWS if row[1] == "p0"]
    made = convert_cells(write_table(tmp_path / "cells.csv", rows), tmp_path / "bags")
    assert list(made.counts) == ["_a_b_c"]
    assert (tmp_path / "bags" / "_a_b_c.h5").is_file()
    twice = [["a/b" if row[0] == "image-0" else "a_b", *row[1:]] for row in ROWS[:80]]
    with pytest.raises(FormatError, match=r"image a_b and image a/b .* both become a_b\.h5"):
        convert_cells(write_table(tmp_path / "twice.csv", twice), tmp_path / "twice")


def test_the_same_again_changes_nothing_and_other_bags_are_not_replaced(table, tmp_path) -> None:
    convert_cells(table, tmp_path / "bags")
    convert_cells(table, tmp_path / "bags")
    before = {path: path.read_bytes() for path in (tmp_path / "bags").iterdir()}
    write_table(table, change("x", 3.25))
    with pytest.raises(OptionError, match=r"image-\d.h5: exists and differs"):
        convert_cells(table, tmp_path / "bags")
    assert {path: path.read_bytes() for path in (tmp_path / "bags").iterdir()} == before
    convert_cells(table, tmp_path / "bags", overwrite=True)
    assert {path: path.read_bytes() for path in (tmp_path / "bags").iterdir()} != before


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("x", "", r"column 'x' has 1 cells that are no numbers \(''\)"),
        ("x", "inf", r"1 cells have no position \(first: row 4\)"),
        ("y", "left", r"no numbers \('left'\)"),
        ("cell_type", "", r"1 cells have no type in column 'cell_type' \(first: row 4\)"),
        ("image", "NA", r"1 cells have no id in column 'image' \(first: row 4\)"),
        ("patient_id", "p9", r"image image-0 belongs to the patients p\d and p\d"),
    ],
)
def test_cells_without_a_value_are_named(tmp_path, column, value, problem) -> None:
    path = write_table(tmp_path / "cells.csv", change(column, value))
    with pytest.raises(FormatError, match=problem):
        convert_cells(path, tmp_path / "bags")
    assert not (tmp_path / "bags").exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"type": "celltyp"}, r"no column 'celltyp' for `type`; did you mean 'cell_type'"),
        ({"markers": "KI76"}, r"no column 'KI76' for `markers`; did you mean 'KI67'"),
        ({"x": "z"}, "no column 'z' for `x`"),
        ({"arcsinh": 5}, "`arcsinh` is for markers"),
        ({"patch_size": 0}, "`patch_size` is 0; expected a number above zero"),
        ({"markers": "cell_type"}, r"no numbers \('B cell', 'T cell', 'tumour'\)"),
        ({"markers": "KI67,KI67"}, "the marker 'KI67' occurs twice"),
        ({"x": "y"}, "`x` and `y` are both the column 'y'"),
    ],
)
def test_wrong_columns_are_answered_with_those_there_are(table, tmp_path, given, problem) -> None:
    with pytest.raises((OptionError, FormatError), match=problem):
        convert_cells(table, tmp_path / "bags", **given)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read as a table"),
        (b"image,x,y,type\n", "has no rows"),
        (b"a,b\n1,2\n", "no column names the image"),
        (b"image,type\n1,2\n", "no columns hold the position"),
        (b"image,x,y\n1,2,3\n", "found neither types nor markers"),
        (b"image,x,y,type,type\n1,2,3,4,5\n", "two columns are called 'type'"),
        (b"image,x,y,type\n1,2,3\n1,2,3,4,5,6\n", "cannot be read as a table|no type"),
        (b"\xff\xfe\x00", "is not in UTF-8; save it as CSV in UTF-8"),
        (b"image,x,y,type\nA,1,2,T,\nA,1,3,T,\n", "remove the ',' at the end of each row"),
        (b"image;x;y;type\nA;1,5;2;T\n", "write decimals with a point"),
        (b"sample_id,fov,x,y,type\nA,1,2,3,T\nA,2,2,4,T\n", "choose by `image`: sample_id, or"),
        (
            b"image,x,y,type\n" + b"A" * 300 + b",1,2,T\nB,1,2,T\nB,2,2,T\n",
            "is too long for a file",
        ),
        (b"image,x,y,type\n1,2,2,T\n1,2,2,T\n", "no image has cells at two places"),
    ],
)
def test_files_that_are_no_tables_of_cells_are_one_sentence(tmp_path, content, problem) -> None:
    (tmp_path / "cells.csv").write_bytes(content)
    with pytest.raises(FormatError, match=problem) as raised:
        convert_cells(tmp_path / "cells.csv", tmp_path / "bags")
    assert "\n" not in str(raised.value)


def test_markers_beyond_float16_are_not_written_as_infinity(tmp_path: Path) -> None:
    path = write_table(tmp_path / "cells.csv", change("KI67", 70_000))
    with pytest.raises(FormatError, match="more than float16 can hold"):
        convert_cells(path, tmp_path / "bags", markers="KI67", dtype="float16")


def test_tables_of_one_cohort_share_types_and_sizes(tmp_path: Path) -> None:
    one = write_table(tmp_path / "one.csv", [row for row in ROWS[:80] if row[4] != "tumour"])
    two = write_table(tmp_path / "two.csv", ROWS[80:])
    made = convert_cells([one, two], tmp_path / "bags")
    assert made.features == ("B cell", "T cell", "tumour")
    assert len({read_bag(path).encoder for path in (tmp_path / "bags").glob("*.h5")}) == 1
    with pytest.raises(FormatError, match="would both become"):
        convert_cells([two, two], tmp_path / "twice")


# --- AnnData


@pytest.mark.parametrize("kind", ["dense", "csr", "csc"])
def test_anndata_is_read_as_anndata_wrote_it(kind: str) -> None:
    """The files were made by anndata 0.12 from the numbers of expected.csv."""
    folder = Path(__file__).parent / "anndata"
    with (folder / "expected.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = read_cell_table(folder / f"{kind}.h5ad", CellColumns(markers=("CK", "n", "CD3")))
    for column, name in enumerate(("CK", "n", "CD3")):
        np.testing.assert_array_equal(found.markers[:, column], [float(r[name]) for r in rows])
    np.testing.assert_array_equal(found.coords, [[float(r["x"]), float(r["y"])] for r in rows])
    assert found.image.tolist() == [r["library_id"] for r in rows]
    unknown_or_true = {"a": "True", "b": "True"}
    assert found.others == {"grade": {"a": "1", "b": "3"}, "ok": unknown_or_true}
    types = read_cell_table(folder / f"{kind}.h5ad").type
    assert types.tolist() == [r["cell_type"] for r in rows]


def test_anndata_without_types_has_all_markers(tmp_path: Path) -> None:
    path = Path(__file__).parent / "anndata" / "no-types.h5ad"
    assert convert_cells(path, tmp_path / "bags").features == ("CD3", "CD8", "CK", "DNA")


def test_a_damaged_anndata_file_is_one_sentence(tmp_path: Path) -> None:
    whole = (Path(__file__).parent / "anndata" / "dense.h5ad").read_bytes()
    path = tmp_path / "cut.h5ad"
    for end in (0, 100, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:end])
        with pytest.raises(FormatError, match=r"cut\.h5ad: cannot be read"):
            convert_cells(path, tmp_path / "bags")
