"""Files of earlier versions are read, shown, resumed and predicted from as when they were written.

``make_files.py`` wrote them. Weights and predictions of training are compared bit by bit where
torch and the processor are those of ``computed_by.json``, and to 1e-6 elsewhere: another torch or
processor may round otherwise. All other predictions are compared to 1e-6.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arithmetic import describe_arithmetic, hash_tensors
from asgi_caller import fetch
from trial import Ended, run_command

from sacmil import load_model, predict, read_bag
from sacmil.errors import SacMILError
from sacmil.viewer.access import AllowedHosts
from sacmil.viewer.app import create_app
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.workers import WorkQueue

ROOT = Path(__file__).parent / "files"
FILES = ROOT / "0.1-dev-1"
MODELS = sorted(folder.name for folder in (FILES / "models").iterdir())
MOST_BYTES = 500_000
CLOSE = {"rtol": 1e-6, "atol": 1e-6}

pytestmark = pytest.mark.usefixtures("inline_workers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy in another place than the files were written in."""
    return Path(shutil.copytree(FILES, tmp_path / "moved"))


def read_json(name: str) -> Any:
    return json.loads((FILES / name).read_text())


def succeed(line: str) -> Ended:
    ended = run_command(line)
    assert ended.code == 0, f"sacmil {line}\n{ended.output}"
    return ended


def snapshot(files: Iterable[Path]) -> dict[Path, tuple[int, bytes]]:
    """What changes when a file is written again, even with the same content."""
    return {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in sorted(files) if f.is_file()}


def has_same_arithmetic() -> bool:
    return describe_arithmetic() == read_json("computed_by.json")


# Single files ----------------------------------------------------------------------------------


def test_all_files_together_stay_small() -> None:
    assert sum(file.stat().st_size for file in ROOT.rglob("*") if file.is_file()) < MOST_BYTES


def test_no_file_holds_a_path_of_the_machine_that_wrote_it() -> None:
    for file in filter(Path.is_file, ROOT.rglob("*")):
        found = re.findall(rb"/(?:work|home|root|tmp|usr|opt|Users)/[\w.]+", file.read_bytes())
        assert not found, f"{file}: {found[0].decode()}"


def test_a_bag_with_every_fact_keeps_them() -> None:
    bag = read_bag(FILES / "other-bags/every-fact.h5")
    assert (bag.slide_id, bag.features.shape, bag.features.dtype) == ("every-fact", (12, 8), "f4")
    assert (bag.patch_size, bag.mpp, bag.stride, bag.tile_px) == (32, 0.25, 16, 64)
    assert (bag.slide_size, bag.bounds_origin) == ((640, 480), (3, 5))
    assert tuple(bag.encoder or ()) == ("lite0", "00ff00ff00ff00ff")
    assert bag.labels is not None
    assert bag.labels.tolist() == [-1, 0, 1] * 4
    assert (bag.provenance or {})["nested"] == {"a": [1, 2.5]}
    bare = read_bag(FILES / "other-bags/no-scale.h5")
    assert (bare.features.dtype, bare.mpp, bare.patch_size) == ("f2", None, 32.5)
    assert bare.coords.dtype == "f8"


def test_info_shows_every_bag_and_model() -> None:
    shown = [*FILES.glob("**/bags/*.h5"), *FILES.glob("other-bags/*"), *FILES.glob("models/*")]
    shown += [*FILES.glob("run/*/*/fold_*"), *FILES.glob("extraction/*/features*/*.h5")]
    shown += [FILES / "trained", FILES / "exported/model", *FILES.glob("exported/run/*")]
    lines = succeed(f"info --json {' '.join(map(str, shown))}").output.splitlines()
    assert [json.loads(line)["file"] for line in lines] == list(map(str, shown))
    assert len(lines) == 8 + 2 + len(MODELS) + 4 + 1 + 1 + 1 + 2


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_its_tensors_and_predicts_as_before(name: str) -> None:
    model = load_model(FILES / "models" / name)
    sizes = {key: list(value.shape) for key, value in model.state_dict().items()}
    assert sizes == read_json("state_dicts.json")[name]
    assert model.classes == ("high", "low")
    found = predict(model, FILES / "bags/slide-0.h5")
    for kind, values in read_json("models.json")[name].items():
        if values is None:
            assert getattr(found, kind) is None
        else:
            np.testing.assert_allclose(getattr(found, kind), values, **CLOSE)


def change_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_recorded_hashes_are_verified(folder: Path) -> None:
    features = read_bag(folder / "bags/slide-0.h5").features.tobytes()
    position = (folder / "bags/slide-0.h5").read_bytes().index(features)
    change_byte(folder / "bags/slide-0.h5", position)
    with pytest.raises(SacMILError, match="checksum"):
        read_bag(folder / "bags/slide-0.h5")
    change_byte(folder / "models/abmil/model.safetensors", -1)
    with pytest.raises(SacMILError, match="is not the file its card was written for"):
        load_model(folder / "models/abmil")
    card = folder / "models/sac_mil_twice/card.json"
    card.write_text(card.read_text().replace("fps_free", "fps"))
    with pytest.raises(SacMILError, match="changed after it was written"):
        load_model(card.parent)
    change_byte(folder / "exported/model/model.onnx", -1)
    ended = run_command(f"predict {folder}/bags --model {folder}/exported/model --out {folder}/o")
    assert (ended.code, "model.onnx is not the file" in ended.output) == (1, True), ended.output


# Runs ------------------------------------------------------------------------------------------


def train_line(folder: Path, command: str, out: str, config: str) -> str:
    given = f"{folder}/table.csv --bags {folder}/bags --splits {folder}/splits"
    return f"{command} {given} --out {folder}/{out} --config {folder}/{config}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the interrupted run resumed, and a new one of the same configuration.

    Both in another process: what ran before in this one may change the last bits.
    """
    folder = Path(shutil.copytree(FILES, tmp_path_factory.mktemp("trained") / "moved"))
    lines = [
        train_line(folder, "crossval", "interrupted", "interrupted/config.yaml"),
        train_line(folder, "train", "new", "config.yaml"),
    ]
    code = "import sys; from sacmil.cli.main import cli\n"
    code += "for line in sys.argv[1:]: cli(line.split(), standalone_mode=False)"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code, *lines],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def test_splits_are_accepted(folder: Path) -> None:
    before = snapshot(folder.glob("splits/*"))
    ended = succeed(f"split {folder}/table.csv --check {folder}/splits --out {folder}/again")
    assert "2 folds" in ended.output
    names = [file.name for file in before]
    assert names == ["splits.json", "splits_0.csv", "splits_1.csv"]
    for file, (_, content) in before.items():
        assert (folder / "again" / file.name).read_bytes() == content


def read_means(table: str) -> dict[tuple[str, ...], float]:
    """The estimates of a printed table; intervals may be computed otherwise one day."""
    rows = csv.DictReader(line for line in io.StringIO(table) if "," in line)
    keys = ("model", "first", "second", "metric")
    return {
        tuple(row[key] for key in keys if key in row): float(row.get("mean") or row["difference"])
        for row in rows
    }


@pytest.mark.parametrize("line", read_json("printed.json"))
def test_metrics_of_runs_are_as_before(line: str) -> None:
    command, name = line.split()
    found = succeed(f"{command} {FILES}/{name} --draws 100 --format csv").output
    expected = read_means(read_json("printed.json")[line])
    assert expected
    assert read_means(found[found.index(",".join(list_header(line))) :]) == pytest.approx(expected)


def list_header(line: str) -> list[str]:
    return read_json("printed.json")[line].splitlines()[0].split(",")


def test_a_finished_run_trains_nothing(folder: Path) -> None:
    parts = snapshot(folder.glob("run/*/seed_0/fold_*/*"))
    predictions = (folder / "run/predictions.csv").read_bytes()
    assert len(parts) == 4 * 6
    before = snapshot(folder.glob("trained/model.safetensors"))
    succeed(train_line(folder, "crossval", "run", "run/config.yaml"))
    assert snapshot(folder.glob("run/*/seed_0/fold_*/*")) == parts
    assert (folder / "run/predictions.csv").read_bytes() == predictions
    succeed(train_line(folder, "train", "trained", "config.yaml"))
    assert snapshot(before) == before


def read_probabilities(file: Path) -> dict[tuple[str, ...], list[float]]:
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    keys = ("slide_id", "model", "split", "fold")
    return {
        tuple(row[key] for key in keys if key in row): [float(row["p_high"]), float(row["p_low"])]
        for row in rows
    }


def assert_same_probabilities(found: Any, expected: Any) -> None:
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), **CLOSE)


def test_an_interrupted_run_resumes_to_the_same_bits(trained: Path) -> None:
    finished = "interrupted/sac_mil_twice/seed_0/fold_0"
    assert read_all(trained / finished) == read_all(FILES / finished)
    checkpoints = "interrupted/**/checkpoint.safetensors"
    assert (len(list(FILES.glob(checkpoints))), list(trained.glob(checkpoints))) == (2, [])
    for part, digest in read_json("resumed.json").items():
        history = (trained / "interrupted" / part / "metrics.csv").read_text()
        assert history.startswith(history_before(part)), "its epochs were trained again"
        if has_same_arithmetic():
            assert hash_tensors(load_model(trained / "interrupted" / part)) == digest, part
    files = trained / "interrupted/predictions.csv", trained / "resumed.csv"
    assert_same_probabilities(*map(read_probabilities, files))
    if has_same_arithmetic():
        assert files[0].read_bytes() == files[1].read_bytes()


def read_all(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def history_before(part: str) -> str:
    """Epochs of a part before it was interrupted; empty where it had none.

    They hold the seconds each took, so that epochs trained again are noticed.
    """
    file = FILES / "interrupted" / part / "metrics.csv"
    return file.read_text() if file.exists() else ""


def test_old_spellings_in_a_configuration_train_the_same_model(trained: Path) -> None:
    old, new = (load_model(trained / name) for name in ("trained", "new"))
    if has_same_arithmetic():
        assert hash_tensors(old) == hash_tensors(new)
    for name, value in old.state_dict().items():
        if name.endswith("attention.weight.bias"):
            continue  # the softmax cancels it: Adam makes steps of rounding errors
        np.testing.assert_allclose(new.state_dict()[name], value, **CLOSE, err_msg=name)


# Predictions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", read_json("probabilities.json"))
def test_runs_and_exports_predict_as_before(name: str, tmp_path: Path) -> None:
    given = f"--model {FILES}/{name} --out {tmp_path}/out --no-heatmaps --device cpu"
    ended = succeed(f"predict {FILES}/bags {given}")
    assert "8 of 8" in ended.output
    found = read_probabilities(tmp_path / "out/predictions.csv")
    expected = read_json("probabilities.json")[name]
    assert_same_probabilities({slide: value for (slide, _), value in found.items()}, expected)


def test_a_slide_that_was_extracted_is_not_extracted_again(folder: Path) -> None:
    made = [file for file in folder.glob("extraction/*/**/*") if file.is_file()]
    assert {file.suffix for file in made} == {".h5", ".geojson", ".png"}
    for file in made:
        os.utime(file, (0, 0))
    before = snapshot(made)
    given = f"--encoder onnx:{folder}/encoder.onnx --patch-size 32 --tissue detect"
    succeed(f"extract {folder}/slides --out {folder}/extraction {given}")
    assert snapshot(folder.glob("extraction/*/**/*")) == before
    with (folder / "extraction/extraction.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["slide_id"], row["status"]) == ("tissue", "done")
    assert row["path"] == str(folder / "slides/tissue.tif")


@pytest.fixture
def make_app(folder: Path) -> Iterator[Callable[[Path], Any]]:
    queue, contents = WorkQueue(1), []

    def make(results: Path) -> Any:
        contents.append(ResultsApi(results, [folder / "slides"]))
        hosts = AllowedHosts.from_address("127.0.0.1", 8765)
        return create_app(contents[-1], hosts, queue=queue, static=folder)

    yield make
    queue.close()
    for content in contents:
        content.close()


def test_the_viewer_shows_the_results(folder: Path, make_app: Callable[[Path], Any]) -> None:
    app = make_app(folder / "results")
    shown = fetch(app, "/api/results").json()
    (slide,) = shown["slides"]
    assert (shown["classes"], slide["slide_id"]) == (["high", "low"], "tissue")
    expected = read_probabilities(FILES / "results/predictions.csv")["tissue", "abmil"]
    assert slide["predictions"][0]["values"] == expected
    detail = fetch(app, "/api/slides/0").json()
    assert (detail["size"], detail["zoomable"]) == ([256, 192], True)
    with np.load(FILES / "results/scores/abmil/tissue.npz") as scores:
        found = fetch(app, "/api/slides/0/scores/0").json()["scores"]
        np.testing.assert_array_equal(np.float32(found), scores["scores"])
    for part in ("thumbnail", f"tiles/{detail['levels'] - 1}/0_0.jpg"):
        assert fetch(app, f"/api/slides/0/{part}").status == 200
