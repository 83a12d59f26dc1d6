"""``sacmil split``: folds on disk and a table of them; existing splits are not lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sacmil.cohorts.cohort import read_cohort
from sacmil.cohorts.split_cohort import read_splits
from sacmil.cohorts.splits import make_folds


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        f"p{patient},p{patient}-{number}.svs,{'tumour' if patient % 2 else 'normal'},h{patient % 4}"
        for patient in range(20)
        for number in range(2)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["case_id,slide_id,label,hospital", *rows]))
    return path


def test_folds_are_written_and_printed(sacmil: Callable, table: Path, tmp_path: Path) -> None:
    done = sacmil("split", table, "--folds", 5, "--seed", 3, "--out", tmp_path / "splits")
    assert (done.code, done.err) == (0, "")
    cohort = read_cohort(table)
    assert read_splits(tmp_path / "splits", cohort) == make_folds(cohort, 5, seed=3)
    lines = done.out.splitlines()
    assert lines[0] == "40 slides of 20 patients; patients/slides:"
    assert lines[2].split() == ["fold", "set", "all", "normal", "tumour"]
    assert lines[5].split() == ["0", "test", "4/8", "2/4", "2/4"]
    assert lines[-1] == f"5 folds in 6 files: {tmp_path / 'splits' / 'splits_0.csv'}, …"
    assert not any(line != line.rstrip() for line in lines)


def test_other_splits_are_replaced_only_with_overwrite(
    sacmil: Callable, table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "splits"
    assert sacmil("split", table, "--out", out).code == 0
    assert sacmil("split", table, "--out", out).code == 0  # the same again harms nobody
    done = sacmil("split", table, "--out", out, "--folds", 2)
    assert (done.code, done.out) == (1, "")
    assert "--overwrite" in done.err
    assert len(list(out.glob("splits_*.csv"))) == 5
    assert sacmil("split", table, "--out", out, "--folds", 2, "--overwrite").code == 0
    assert len(list(out.glob("splits_*.csv"))) == 2


def test_sites_are_kept_whole(sacmil: Callable, table: Path, tmp_path: Path) -> None:
    done = sacmil(
        "split", table, "--folds", 2, "--preserve", "hospital", "--out", tmp_path / "splits"
    )
    assert done.code == 0
    cohort = read_cohort(table, site="hospital")
    for fold in read_splits(tmp_path / "splits", cohort):
        train, val, test = ({s.site for s in cohort.get_slides(part)} for part in fold)
        assert not (train | val) & test


def test_given_splits_are_looked_at_and_nothing_is_written(
    sacmil_process: Callable, table: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    text = ",train,val,test\n0,p0-0,p2-0,p0-1\n1,p1-0,p3-0,p5-0\n"
    for number in range(2):
        (theirs / f"splits_{number}.csv").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    done = sacmil_process("split", table, "--check", theirs)
    assert done.code == 0
    assert "Warning: fold 0: 1 patient is in the test set and in training or validation" in done.err
    assert "several folds" in done.err
    assert done.out.splitlines()[5].split() == ["0", "test", "2/2", "1/1", "1/1"]
    assert sorted(tmp_path.rglob("*")) == before


def test_given_splits_may_be_written_as_ours(sacmil: Callable, table: Path, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(
        "bag_name,split\np0-0,train\np1-0,train\np2-0,test\np3-0,test\n"
    )
    done = sacmil("split", table, "--check", tmp_path / "s.csv", "--out", tmp_path / "ours")
    assert done.code == 0
    assert (tmp_path / "ours" / "splits_0.csv").read_text().startswith(",train,val,test\n")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "--out DIR"),
        (["--out", "x", "--folds", "1"], 2, "--folds"),
        (["--out", "x", "--folds", "11"], 1, "use fewer folds"),
        (["--out", "x", "--validation", "1"], 2, "--validation"),
        (["--out", "x", "--classes", "normal"], 2, "two or more different names"),
        (["--out", "x", "--classes", "normal,tumor"], 1, "did you mean 'tumor'"),
        (["--out", "x", "--label-column", "lable"], 2, "did you mean 'label'"),
        (["--out", "x", "--preserve", "site"], 2, "there is no column 'site'"),
        (["--out", "x", "--preserve", "barcode"], 1, "not a TCGA barcode"),
        (["--out", "x", "--clinical", "table.csv"], 2, "--dataset tcga-brca"),
        (["--out", "x", "--dataset", "camelyon16"], 1, "expected normal_, tumor_ or test_"),
        (["--out", "x", "--dataset", "tcga-lung", "--classes", "a,b"], 2, "leave --classes out"),
        (["--out", "x", "--dataset", "tcga-lung", "--check", "table.csv"], 2, "leave one out"),
    ],
)
def test_wrong_calls_are_reported_in_a_sentence(
    sacmil: Callable,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    expected: str,
) -> None:
    monkeypatch.chdir(table.parent)
    done = sacmil("split", table, *arguments)
    assert done.code == code
    assert expected in done.err
    assert "Traceback" not in done.err
    assert not Path("x").exists()


def test_camelyon16_keeps_its_official_test_set_apart(sacmil: Callable, tmp_path: Path) -> None:
    names = [f"{kind}_{n:03}" for kind in ("normal", "tumor", "test") for n in range(1, 11)]
    rows = [f"{n},{'Tumor' if n > 'test_005' else 'Normal'}" for n in names]
    (tmp_path / "c.csv").write_text("\n".join(["slide,label", *rows]))
    out = tmp_path / "splits"
    done = sacmil("split", tmp_path / "c.csv", "--dataset", "camelyon16", "--out", out)
    assert (done.code, done.err) == (0, "")
    assert "test_" not in "".join(file.read_text() for file in out.glob("splits_*.csv"))
    cohort = read_cohort(out / "table.csv")
    (official,) = read_splits(out / "official", cohort)
    assert all(name.startswith("test_") for name in official.test)
    assert len(official.test) == 10
    assert f"the official test set: {out / 'official'}" in done.out


def test_a_gdc_sample_sheet_becomes_a_table_and_splits(sacmil: Callable, tmp_path: Path) -> None:
    rows = [
        f"TCGA-{site}-{n:04}-01Z-00-DX1.X.svs\tTCGA-{'LUAD' if n % 2 else 'LUSC'}"
        for site in ("05", "18", "22")
        for n in range(4)
    ]
    (tmp_path / "sheet.tsv").write_text("\n".join(["File Name\tProject ID", *rows]))
    lung = ("--dataset", "tcga-lung", "--preserve", "barcode", "--folds", 3)
    done = sacmil("split", tmp_path / "sheet.tsv", *lung, "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    cohort = read_cohort(tmp_path / "out" / "table.csv", site="site")
    assert cohort.classes == ("LUSC", "LUAD")
    for fold in read_splits(tmp_path / "out", cohort):
        assert len({slide.site for slide in cohort.get_slides(fold.test)}) == 1


def test_asking_for_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from sacmil.cli.main import cli\n"
        "cli.main(['split', '--help'], standalone_mode=False)\n"
        "assert not {'numpy', 'torch', 'h5py', 'openpyxl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
