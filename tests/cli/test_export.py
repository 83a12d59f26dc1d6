"""``sacmil export``: models, runs and encoders as ONNX; a sentence and no folder where it fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from answering import make_bag, write_bags, write_model, write_run

from sacmil import create_model, load_model, predict, save_model
from sacmil.deploy.load import load_ensembles
from sacmil.deploy.runtime import load
from sacmil.encoders import load_encoder

pytestmark = pytest.mark.usefixtures("onnx_registry")


def names(folder: Path) -> set[str]:
    """All that lies in a folder, hidden files too."""
    return {file.name for file in folder.iterdir()}


def read_error(done: object, code: int = 1) -> str:
    """The one line of a failed command."""
    found, out, err = done  # type: ignore[misc]
    assert (found, out) == (code, "")
    (message,) = (line for line in err.splitlines() if line.startswith("Error: "))
    assert code == 2 or err.count("\n") == 1
    return message


def test_a_model_is_written_with_its_parity_and_answers_as_torch_does(
    sacmil: Callable, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m")
    done = sacmil("export", model, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    tried = [line.split()[0] for line in done.out.splitlines()[1:-1]]
    assert tried == ["1", "2", "63", "64", "65", "5,000", "20,001"]
    assert done.out.endswith(f"use it with sacmil predict --model {tmp_path / 'out'}\n")
    assert names(tmp_path) == {"m", "out"}
    assert names(tmp_path / "out") == {"card.json", "model.onnx"}
    bag = make_bag("s")
    found, wanted = load(tmp_path / "out").predict(bag), predict(load_model(model), bag)
    np.testing.assert_allclose(found.probabilities, wanted.probabilities, atol=1e-5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a run, and of its export once a test needed it."""
    folder = tmp_path_factory.mktemp("kept")
    write_run(folder / "run", 2)
    return folder


@pytest.fixture
def exported_run(sacmil: Callable, kept: Path) -> Path:
    """The export of the run beside it, to read or copy."""
    out = kept / "out"
    if not out.exists():
        assert sacmil("export", kept / "run", "--out", out).code == 0
    return out


def test_a_run_and_its_export_give_the_same_answers_under_the_same_hash(
    sacmil: Callable, exported_run: Path, tmp_path: Path
) -> None:
    run, out = exported_run.with_name("run"), exported_run
    assert names(out) == {"member_0", "member_1"}
    bags = write_bags(tmp_path / "bags", "a", "b")
    predictions = {}
    for model in (run, out):
        answers = tmp_path / f"answers-{model.name}"
        words = ("--model", model, "--out", answers, "--no-heatmaps", "--device", "cpu")
        done = sacmil("predict", bags, *words)
        assert done.code == 0, done.err
        slides = json.loads((answers / "predictions.json").read_text())["slides"]
        predictions[model] = [one for slide in slides for one in slide["answers"]]
    assert len(predictions[run]) == 2
    for ours, theirs in zip(predictions[run], predictions[out], strict=True):
        assert ours["hash"] == theirs["hash"] == load(out).hash
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
    assert load_ensembles([run])[0].hash == load(out).hash


def test_an_older_export_is_replaced_and_anything_else_is_left_unchanged(
    sacmil: Callable, exported_run: Path, tmp_path: Path
) -> None:
    model, out = write_model(tmp_path / "m"), tmp_path / "out"
    shutil.copytree(exported_run, out)
    assert sacmil("export", model, "--out", out).code == 0
    assert names(out) == {"card.json", "model.onnx"}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    message = read_error(sacmil("export", model, "--out", tmp_path / "thesis"))
    assert "is not an exported model (it has no model.onnx); choose another --out" in message
    message = read_error(sacmil("export", "--encoder", "lite0", "--out", tmp_path / "thesis"))
    assert "is not an exported encoder (it has no encoder.onnx); choose another folder" in message
    assert names(tmp_path / "thesis") == {"chapter.tex"}
    read_error(sacmil("export", model, "--out", model))
    assert names(model) == {"card.json", "model.safetensors"}


@pytest.mark.slow
def test_an_encoder_is_written_and_named_for_extraction(sacmil: Callable, tmp_path: Path) -> None:
    out = tmp_path / "encoder"
    done = sacmil("export", "--encoder", "lite0", "--out", out)
    assert done.code == 0, done.err
    assert done.out == f"{out}: use it with --encoder onnx:{out}\n"
    assert names(tmp_path) == {"encoder"}
    tiles = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), np.uint8)
    found, wanted = (load_encoder(name) for name in (f"onnx:{out}", "lite0"))
    assert found.hash == wanted.hash
    difference = np.abs(found.encode(tiles) - wanted.encode(tiles)).max()
    assert difference <= 1e-4 * np.abs(wanted.encode(tiles)).max()


def test_wrong_calls_are_reported_before_anything_is_done(sacmil: Callable, tmp_path: Path) -> None:
    model, out = write_model(tmp_path / "m"), tmp_path / "out"
    file = tmp_path / "file"
    file.touch()
    for words, message in [
        ((model, "--encoder", "lite0", "--out", out), "either a MODEL folder or --encoder NAME"),
        (("--out", out), "either a MODEL folder or --encoder NAME"),
        ((model,), "Missing option '--out'"),
        ((model, "--download", "--out", out), "--weights and --download need --encoder"),
        ((model, "--out", file), "is a file"),
    ]:
        assert message in read_error(sacmil("export", *words), code=2)
    assert names(tmp_path) == {"m", "file"}


def tampered(model: Path) -> None:
    card = json.loads((model / "card.json").read_text())
    card["options"]["hidden"] = 3
    del card["card_sha256"]  # as if written so
    (model / "card.json").write_text(json.dumps(card))


def of_another(model: Path) -> None:
    weights = write_model(model.parent / "other", seed=5) / "model.safetensors"
    (model / "model.safetensors").write_bytes(weights.read_bytes())


def truncated(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def without_card(model: Path) -> None:
    (model / "card.json").unlink()


def half_a_card(model: Path) -> None:
    (model / "card.json").write_text('{"schema_version": 1, "mo')


@pytest.mark.parametrize("spoil", [tampered, of_another, truncated, without_card, half_a_card])
def test_a_spoiled_model_is_one_sentence_that_names_it(
    sacmil: Callable, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    model = write_model(tmp_path / "m")
    spoil(model)
    message = read_error(sacmil("export", model, "--out", tmp_path / "out"))
    assert message.startswith(f"Error: {model}")
    assert names(tmp_path) - {"other"} == {"m"}


def test_a_run_with_a_spoiled_part_writes_no_part(sacmil: Callable, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    truncated(run / "abmil" / "seed_0" / "fold_1")
    message = read_error(sacmil("export", run, "--out", tmp_path / "out"))
    assert "fold_1" in message
    assert names(tmp_path) == {"run"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere: is neither a model folder (no card.json) nor a run"),
        (("empty",), "empty: is neither a model folder (no card.json) nor a run"),
        (("--encoder", "lite1"), "did you mean 'lite0'"),
        (("--encoder", "lite0", "--weights", "nowhere.pth"), "nowhere.pth"),
    ],
)
def test_what_is_not_there_is_reported(
    sacmil: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert message in read_error(sacmil("export", *words, "--out", "out"))
    assert names(tmp_path) == {"empty"}


def test_a_model_that_cannot_be_exported_says_why(sacmil: Callable, tmp_path: Path) -> None:
    save_model(tmp_path / "m", create_model("norma", in_dim=4, num_classes=2))
    message = read_error(sacmil("export", tmp_path / "m", "--out", tmp_path / "out"))
    assert message.startswith("Error: norma cannot be exported: it reads segment after segment")
    assert names(tmp_path) == {"m"}
