"""``sacmil convert``: every file ends as a native bag or a reason, and nothing in between."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from sacmil import Bag, load_model, read_bag, write_bag
from sacmil.workflows import convert

TRIDENT = {"patch_size": 256, "patch_size_level0": 512, "overlap": 0}
FEATURES = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
COORDS = np.argwhere(np.ones((5, 6))) * 512


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file as TRIDENT does."""

    def write(name: str, features: Any = FEATURES, folder: str = "in", **changes: Any) -> Path:
        path = tmp_path / folder / f"{name}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file["features"], file["coords"] = features, COORDS
            file["coords"].attrs.update(TRIDENT | changes)
        return path

    return write


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads bags in this process, for tests of all that is around it."""

    def run_each(function: Callable, items: Any, **_: Any) -> Iterator[Any]:
        from sacmil.errors import SacMILError
        from sacmil.parallel import TaskOutcome

        for index, item in enumerate(items):
            try:
                yield TaskOutcome(index, function(item), None)
            except SacMILError as error:
                yield TaskOutcome(index, None, str(error))

    monkeypatch.setattr(convert, "run_each", run_each)


def table(out: Path) -> dict[str, dict[str, str]]:
    with (out / "convert.csv").open(newline="") as file:
        return {row["slide_id"]: row for row in csv.DictReader(file)}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# What is converted.


def test_good_files_are_converted_though_others_fail(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    good, nested = write("good"), write("nested", folder="in/deeper")
    bad = write("bad")
    bad.write_bytes(bad.read_bytes()[:900])
    (good.parent / "empty.h5").write_bytes(b"")
    done = sacmil("convert", good.parent, "--out", out, "--workers", 1)
    assert done.code == 1
    assert done.out.splitlines()[-1] == (
        f"2 converted, 0 already there, 2 failed: {out / 'convert.csv'}"
    )
    assert files(out) == {"good.h5", "nested.h5", "convert.csv"}
    rows = table(out)
    assert {name: row["status"] for name, row in rows.items()} == {
        "good": "converted",
        "nested": "converted",
        "bad": "failed",
        "empty": "failed",
    }
    assert (rows["good"]["instances"], rows["good"]["layout"]) == ("30", "trident")
    assert rows["nested"]["file"] == str(nested.resolve())
    assert "truncated or damaged" in rows["bad"]["reason"]
    assert "an empty file" in rows["empty"]["reason"]
    for name in ("bad", "empty"):
        assert f"Error: {rows[name]['reason']}\n" in done.err
        assert rows[name]["file"] in rows[name]["reason"]
    bag = read_bag(out / "good.h5")
    np.testing.assert_array_equal(bag.features, FEATURES)
    np.testing.assert_array_equal(bag.coords, COORDS)
    assert (bag.slide_id, bag.patch_size) == ("good", 512)


@pytest.mark.usefixtures("_here")
def test_hints_and_precision_are_heeded(sacmil: Callable, write: Callable, out: Path) -> None:
    path = write("a")
    done = sacmil("convert", path, "--out", out, "--mpp", 0.25, "--dtype", "float16")
    assert (done.code, done.err) == (0, "converting\n")
    bag = read_bag(out / "a.h5")
    assert (bag.mpp, bag.features.dtype) == (0.25, np.float16)
    done = sacmil("convert", path, "--out", out, "--patch-size", 256)
    assert done.code == 1
    assert "512 in the file but 256 was given" in done.err


@pytest.mark.usefixtures("_here")
def test_features_too_large_for_half_precision_are_a_reason(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    done = sacmil("convert", write("a", FEATURES * 1e5), "--out", out, "--dtype", "float16")
    assert done.code == 1
    assert "more than float16 can hold; leave --dtype out" in done.err
    assert "leave `dtype` out" in table(out)["a"]["reason"], "files keep the library's text"


@pytest.mark.usefixtures("_here")
def test_what_is_odd_is_warned_of_and_written_down(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    done = sacmil("convert", write("a", patch_size_level0=400), "--out", out)
    assert done.code == 0
    assert "1.28 times the stated stride 400" in table(out)["a"]["reason"]
    assert done.err.count("Warning: ") == 1


@pytest.mark.usefixtures("_here")
def test_unit_mistakes_are_stopped(sacmil: Callable, write: Callable, out: Path) -> None:
    done = sacmil("convert", write("a", patch_size_level0=256), "--out", out)
    assert done.code == 1
    assert "--patch-size 512" in done.err
    assert files(out) == {"convert.csv"}


@pytest.mark.usefixtures("_here")
def test_clams_folders_give_one_bag_a_slide(sacmil: Callable, tmp_path: Path, out: Path) -> None:
    for folder in ("h5_files", "pt_files", "patches"):
        (tmp_path / "FEATS" / folder).mkdir(parents=True)
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"FEATS/h5_files/{name}.h5", "w") as file:
            file["features"], file["coords"] = FEATURES, COORDS
        with h5py.File(tmp_path / f"FEATS/patches/{name}.h5", "w") as file:
            file["coords"] = COORDS
            file["coords"].attrs.update(patch_size=256, patch_level=1, downsample=[2.0, 2.0])
        torch.save(torch.from_numpy(FEATURES), tmp_path / f"FEATS/pt_files/{name}.pt")
    assert sacmil("convert", tmp_path / "FEATS", "--out", out).code == 0
    assert files(out) == {"a.h5", "b.h5", "convert.csv"}
    single = sacmil("convert", tmp_path / "FEATS/pt_files/a.pt", "--out", out / "pt")
    assert single.code == 0
    assert (out / "pt" / "a.h5").read_bytes() == (out / "a.h5").read_bytes()


@pytest.mark.usefixtures("_here")
def test_torchmils_folders_give_one_bag_a_slide(
    sacmil: Callable, tmp_path: Path, out: Path
) -> None:
    arrays = {"features": FEATURES, "coords": COORDS, "labels": [1], "patch_labels": [0] * 30}
    for folder, values in arrays.items():
        (tmp_path / "data" / folder).mkdir(parents=True)
        np.save(tmp_path / "data" / folder / "a.npy", values)
    assert sacmil("convert", tmp_path / "data", "--out", out, "--patch-size", 512).code == 0
    assert files(out) == {"a.h5", "convert.csv"}
    assert read_bag(out / "a.h5").labels is not None


# What is there already.


@pytest.mark.usefixtures("_here")
def test_a_second_run_does_only_what_is_missing_or_changed(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    paths = [write(name) for name in "abc"]
    assert sacmil("convert", *paths, "--out", out).code == 0
    before = {name: (out / f"{name}.h5").stat().st_mtime_ns for name in "abc"}
    write("b", FEATURES * 2)
    (out / "c.h5").unlink()
    done = sacmil("convert", *paths, "--out", out)
    assert "2 converted, 1 already there, 0 failed" in done.out
    after = {name: (out / f"{name}.h5").stat().st_mtime_ns for name in "abc"}
    assert {name for name in "abc" if before[name] != after[name]} == {"b", "c"}
    assert "3 converted" in sacmil("convert", *paths, "--out", out, "--overwrite").out
    assert "0 converted, 3 already there" in sacmil("convert", *paths, "--out", out).out
    assert "3 converted" in sacmil("convert", *paths, "--out", out, "--dtype", "float16").out


@pytest.mark.usefixtures("_here")
def test_a_bag_of_another_source_is_not_replaced_unasked(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    write_bag(out / "a.h5", Bag("a", FEATURES * 3, COORDS, 512))
    before = (out / "a.h5").read_bytes()
    done = sacmil("convert", write("a"), "--out", out)
    assert done.code == 1
    assert "was not made from" in done.err
    assert (out / "a.h5").read_bytes() == before
    other = sacmil("convert", write("a", folder="elsewhere"), "--out", out, "--overwrite")
    assert other.code == 0
    assert (out / "a.h5").read_bytes() != before


@pytest.mark.usefixtures("_here")
def test_a_bag_is_not_replaced_by_itself(sacmil: Callable, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_bag(path, Bag("a", FEATURES, COORDS, 512))
    done = sacmil("convert", path, "--out", tmp_path, "--overwrite", "--dtype", "float16")
    assert done.code == 1
    assert "choose another --out" in done.err
    assert read_bag(path).features.dtype == np.float32


@pytest.mark.usefixtures("_here")
def test_the_target_folder_is_not_searched(sacmil: Callable, write: Callable) -> None:
    folder = write("a").parent
    for expected in ("1 converted", "1 already there"):
        done = sacmil("convert", folder, "--out", folder / "native")
        assert done.code == 0
        assert expected in done.out


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_table_cut_short_by_a_crash_costs_no_bag(
    sacmil: Callable, write: Callable, out: Path, cut: int
) -> None:
    paths = [write(name) for name in "abc"]
    assert sacmil("convert", *paths, "--out", out).code == 0
    text = (out / "convert.csv").read_text()
    head, *rows = text.splitlines(keepends=True)
    started = "".join(row.replace(",converted,", ",started,") for row in rows)
    (out / "convert.csv").write_text((head + started + "".join(rows))[:-cut])
    done = sacmil("convert", *paths, "--out", out)
    assert done.code == 0
    assert {row["status"] for row in table(out).values()} == {"converted"}


@pytest.mark.usefixtures("_here")
def test_a_native_bag_under_a_foreign_name_is_refused(
    sacmil: Callable, tmp_path: Path, out: Path
) -> None:
    write_bag(tmp_path / "a.h5", Bag("../b", FEATURES, COORDS, 512))
    done = sacmil("convert", tmp_path / "a.h5", "--out", out)
    assert done.code == 1
    assert "holds the slide '../b'" in done.err
    assert not (tmp_path / "b.h5").exists()


# Wrong calls.


def test_equal_slides_of_two_sources_are_reported_before_anything_is_written(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    one, other = write("a", folder="in/x"), write("a", folder="in/y")
    done = sacmil("convert", one.parents[1], "--out", out)
    assert done.code == 1
    assert str(one) in done.err
    assert str(other) in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.h5", "--out", "o"], "does not exist"),
        (["a.h5"], "Missing option '--out'"),
        (["a.h5", "--out", "o", "--from", "tridnet"], "did you mean 'trident'"),
        (["a.h5", "--out", "o", "--patch-size", "0"], "0"),
        (["a.h5", "--out", "o", "--dtype", "int8"], "int8"),
        (["a.h5", "--out", "o", "-o", "k=1"], "-o sets options of --model"),
        (["a.h5", "--out", "o", "--model", "abmil", "-o", "k"], "expected key=value"),
        (["a.h5", "--out", "o", "--model", "abmil", "-o", "k=["], "YAML"),
        (["a.h5", "--out", "o", "--model", "abmil", "--mpp", "1"], "--mpp is for bags"),
        (["a.h5", "a.h5", "--out", "o", "--model", "abmil"], "one checkpoint"),
        (["a.h5", "--out", "a.h5"], "is a file"),
    ],
)
def test_a_wrong_call_ends_with_2(
    sacmil: Callable, tmp_path: Path, monkeypatch: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.h5").write_text("x")
    done = sacmil("convert", *arguments)
    assert done.code == 2
    assert message in done.err
    assert files(tmp_path) == {"a.h5"}


def test_a_folder_without_bags_is_reported(sacmil: Callable, tmp_path: Path, out: Path) -> None:
    (tmp_path / "in" / "patches").mkdir(parents=True)
    (tmp_path / "in" / "patches" / "a.h5").write_text("x")
    done = sacmil("convert", tmp_path / "in", "--out", out)
    assert done.code == 1
    assert "holds no bags" in done.err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_names_that_are_not_text_are_reported(
    sacmil_process: Callable, write: Callable, out: Path
) -> None:
    path = write("good")
    odd = path.with_name(b'odd\xff,\n"'.decode("utf-8", "surrogateescape") + ".h5")
    odd.write_bytes(path.read_bytes())
    first = (  # the same call, in the same process
        "from sacmil.cli.main import main\n"
        "try: main()\nexcept SystemExit as ended: print('ended with', ended.code, flush=True)\n"
    )
    done = sacmil_process("convert", path.parent, "--out", out, "--workers", 1, before=first)
    assert done.code == 1
    before, after = done.out.split("ended with 1\n")
    assert "1 converted, 0 already there, 1 failed" in before
    assert "0 converted, 1 already there" in after
    assert done.err.count("UTF-8 can encode") == 2


# Damage.


def mutate(whole: bytes, random: np.random.Generator) -> bytes:
    """A file truncated, with flipped bits, overwritten in part, or empty."""
    kind = random.integers(4)
    if kind == 0:
        return whole[: random.integers(len(whole))]
    if kind == 1:
        return b""
    damaged = bytearray(whole)
    places = random.integers(len(whole), size=random.integers(1, 30))
    for place in places:
        damaged[place] ^= 1 << int(random.integers(8))
    if kind == 2:
        start = int(random.integers(len(whole)))
        damaged[start : start + 64] = random.bytes(64)
    return bytes(damaged)


@pytest.mark.parametrize(
    "count",
    [5, pytest.param(40, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)],
)
def test_damaged_files_end_as_bags_or_reasons(
    sacmil: Callable, write: Callable, tmp_path: Path, out: Path, count: int
) -> None:
    random = np.random.default_rng(count)
    folder, coords = tmp_path / "data" / "features", tmp_path / "data" / "coords"
    folder.mkdir(parents=True)
    coords.mkdir()
    torch.save(torch.from_numpy(FEATURES), tmp_path / "a.pt")
    np.save(tmp_path / "a.npy", FEATURES)
    wholes = {
        ".h5": write("a").read_bytes(),
        ".pt": (tmp_path / "a.pt").read_bytes(),
        ".npy": (tmp_path / "a.npy").read_bytes(),
    }
    for index in range(count):
        content = list(wholes.values())[index % 3]
        suffix = list(wholes)[(index + (index % 5 == 0)) % 3]  # every fifth is renamed
        (folder / f"s{index}{suffix}").write_bytes(mutate(content, random))
        np.save(coords / f"s{index}.npy", COORDS)
    done = sacmil("convert", folder, "--out", out, "--patch-size", 512, "--workers", 1)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert "fault of sacmil" not in done.err
    rows = table(out)
    assert len(rows) == count
    converted = {name for name, row in rows.items() if row["status"] == "converted"}
    assert files(out) == {f"{name}.h5" for name in converted} | {"convert.csv"}
    for name, row in rows.items():
        assert row["status"] in ("converted", "failed")
        assert row["status"] == "converted" or row["reason"], name
        assert "\n" not in row["reason"]
    for name in converted:
        assert read_bag(out / f"{name}.h5").slide_id == name


@pytest.mark.usefixtures("_here")
def test_broken_links_fail_and_the_others_go_on(
    sacmil: Callable, write: Callable, out: Path
) -> None:
    folder = write("good").parent
    (folder / "lost.h5").symlink_to("nowhere")
    (folder / "loop.h5").symlink_to("loop.h5")
    done = sacmil("convert", folder, "--out", out, "--workers", 1)
    assert done.code == 1
    found = {name: row["status"] for name, row in table(out).items()}
    assert found == {"good": "converted", "lost": "failed", "loop": "failed"}
    assert "loop.h5: Too many levels of symbolic links" in done.err


def test_a_file_that_kills_or_stops_its_reader_is_a_reason(
    sacmil: Callable, write: Callable, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The workers are made to die or hang at files of these names, as libhdf5 sometimes does."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, signal, time\n"
        "import h5py\n"
        "real = h5py.File.__init__\n"
        "def init(self, name, *a, **k):\n"
        "    path = os.fsdecode(getattr(name, 'name', name))\n"  # it may be open already
        "    if path.endswith('kill.h5'): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    if path.endswith('hang.h5'): time.sleep(600)\n"
        "    real(self, name, *a, **k)\n"
        "h5py.File.__init__ = init\n"
    )
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    paths = [write(name) for name in ("kill", "hang", "good")]
    done = sacmil("convert", *paths, "--out", out, "--limit", 3, "--workers", 1)
    assert done.code == 1
    rows = table(out)
    assert "died" in rows["kill"]["reason"]
    assert "took longer than 3 s" in rows["hang"]["reason"]
    assert all(rows[name]["file"] in rows[name]["reason"] for name in ("kill", "hang"))
    assert rows["good"]["status"] == "converted"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("wait_s", [pytest.param(0.6, marks=pytest.mark.slow), 1.2])
def test_killed_at_any_moment_it_is_taken_up_again(
    sacmil: Callable, write: Callable, out: Path, wait_s: float
) -> None:
    paths = [write(f"s{index}") for index in range(12)]
    command = [sys.executable, "-m", "sacmil", "convert", *map(str, paths), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(wait_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for path in out.glob("*.h5"):
        read_bag(path)
    assert sacmil("convert", *paths, "--out", out).code == 0
    assert {row["status"] for row in table(out).values()} <= {"converted", "present"}
    assert len(list(out.glob("*.h5"))) == 12


# Checkpoints.


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """An official CLAM's parameters, under its own names."""

    def write(wrap: Callable[[Any], Any] = lambda state: state, suffix: str = ".pt") -> Path:
        official = {
            "attention_net.0.weight": torch.randn(512, 6),
            "attention_net.0.bias": torch.randn(512),
            "attention_net.3.attention_a.0.weight": torch.randn(256, 512),
            "attention_net.3.attention_a.0.bias": torch.randn(256),
            "attention_net.3.attention_b.0.weight": torch.randn(256, 512),
            "attention_net.3.attention_b.0.bias": torch.randn(256),
            "attention_net.3.attention_c.weight": torch.randn(1, 256),
            "attention_net.3.attention_c.bias": torch.randn(1),
            "classifiers.weight": torch.randn(2, 512),
            "classifiers.bias": torch.randn(2),
            "instance_classifiers.0.weight": torch.randn(2, 512),
            "instance_classifiers.0.bias": torch.randn(2),
            "instance_classifiers.1.weight": torch.randn(2, 512),
            "instance_classifiers.1.bias": torch.randn(2),
        }
        path = tmp_path / f"s_0_checkpoint{suffix}"
        if suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file(official, path)
        else:
            torch.save(wrap(official), path)
        return path

    return write


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize("wrap", [dict, lambda state: {"state_dict": state, "epoch": 3}])
def test_an_official_checkpoint_becomes_a_model_folder(
    sacmil: Callable, checkpoint: Callable, out: Path, suffix: str, wrap: Callable
) -> None:
    path = checkpoint(wrap, suffix)
    done = sacmil("convert", path, "--out", out, "--model", "clam_sb", "-o", "k_sample=4")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"1 converted: {out}"
    model = load_model(out)
    assert (model.name, model.in_dim, model.num_classes) == ("clam_sb", 6, 2)
    assert model.options["k_sample"] == 4


def test_convert_prints_which_options_were_read_given_and_assumed(
    sacmil: Callable, checkpoint: Callable, out: Path
) -> None:
    done = sacmil("convert", checkpoint(), "--out", out, "--model", "clam_sb", "-o", "k_sample=4")
    read, given, assumed = done.out.splitlines()[:3]
    assert "in_dim=6, num_classes=2, hidden=512, attention_dim=256, gate=true" in read
    assert given.endswith(": k_sample=4")
    assert "dropout=0.25" in assumed
    assert 'instance_loss="svm"' in assumed
    assert "change with -o" in assumed


def test_a_model_folder_is_replaced_with_overwrite_only(
    sacmil: Callable, checkpoint: Callable, out: Path
) -> None:
    command = ("convert", checkpoint(), "--out", out, "--model", "clam_sb")
    assert sacmil(*command).code == 0
    before = (out / "card.json").read_bytes()
    again = sacmil(*command, "-o", "k_sample=4")
    assert again.code == 2
    assert "exists; choose another folder, or add --overwrite" in again.err
    assert (out / "card.json").read_bytes() == before
    assert sacmil(*command, "-o", "k_sample=4", "--overwrite").code == 0
    assert load_model(out).options["k_sample"] == 4


def test_overwrite_never_removes_what_is_not_a_model(
    sacmil: Callable, checkpoint: Callable, out: Path
) -> None:
    out.mkdir()
    (out / "slides.csv").write_text("mine")
    done = sacmil("convert", checkpoint(), "--out", out, "--model", "clam_sb", "--overwrite")
    assert done.code == 1
    assert "is not a model folder" in done.err
    assert (out / "slides.csv").read_text() == "mine"


def test_a_file_of_nested_state_dicts_is_converted(
    sacmil: Callable, golden: Callable, tmp_path: Path, out: Path
) -> None:
    state = {k[3:]: torch.from_numpy(v) for k, v in golden("dtfd").items() if k.startswith("sd/")}
    nested: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in state.items():
        module, _, name = key.partition(".")
        nested.setdefault(module, {})[name] = value
    torch.save(nested, tmp_path / "model.pth")
    done = sacmil("convert", tmp_path / "model.pth", "--out", out, "--model", "dtfd")
    assert done.code == 0
    assert "distill=MaxMinS, groups=5 and total_instances=5" in done.out
    assert load_model(out).options["legacy_ties"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "dsmil"], "this is not an official dsmil"),
        (["--model", "clam_bs"], "did you mean 'clam_sb'"),
        (["--model", "clam_sb", "-o", "smaple=4"], "no option 'smaple'"),
    ],
)
def test_a_checkpoint_of_something_else_is_reported(
    sacmil: Callable, checkpoint: Callable, out: Path, arguments: list[str], message: str
) -> None:
    done = sacmil("convert", checkpoint(), "--out", out, *arguments)
    assert done.code == (1 if "official" in message else 2)
    assert message in done.err
    assert not out.exists()


@pytest.mark.parametrize("content", ["tensor", "list", "empty", "text", "zero"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_that_is_no_checkpoint_is_reported(
    sacmil: Callable, tmp_path: Path, out: Path, content: str, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    saved = {"tensor": torch.ones(2), "list": [1], "empty": {}}
    if content in saved:
        torch.save(saved[content], path)
    else:
        path.write_text("hello" if content == "text" else "")
    done = sacmil("convert", path, "--out", out, "--model", "clam_sb")
    assert done.code == 1
    assert done.err.startswith(f"Error: {path}: ")
    assert done.err.count("\n") == 1
    assert not out.exists()
    if suffix == ".pt" and content in ("text", "zero"):
        assert "this is not a PyTorch checkpoint; expected a file of torch.save" in done.err


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
"""


def test_without_torch_h5_files_convert_and_others_say_how_to_get_it(
    sacmil_process: Callable, write: Callable, tmp_path: Path, out: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT_TORCH)
    good, tensor = write("good"), tmp_path / "in" / "tensor.pt"
    torch.save(torch.from_numpy(FEATURES), tensor)
    done = sacmil_process("convert", good, tensor, "--out", out, PYTHONPATH=str(site))
    assert done.code == 1
    assert "1 converted, 0 already there, 1 failed" in done.out
    assert "pip install 'sacmil[torch]'" in done.err
    done = sacmil_process(
        *("convert", tensor, "--out", out / "m", "--model", "clam_sb"), PYTHONPATH=str(site)
    )
    assert done.code == 1
    assert done.err.endswith("pip install 'sacmil[torch]'\n")


def test_asking_for_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['sacmil', 'convert', '--help']\n"
        "from sacmil.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'h5py', 'torch', 'yaml'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
