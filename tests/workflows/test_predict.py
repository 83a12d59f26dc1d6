"""Slides and bags are predicted; what is done stays done, and failures are reported."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answering import BAGS, CLASSES, make_bag, write_bags, write_model, write_run
from slide_maker import tissue_pixels, write_slide
from tiny_encoder import PX, write_encoder

from sacmil import EncoderId, load_model, predict, read_bag, write_bag
from sacmil.csv_text import restore_cell
from sacmil.errors import EncoderError, ModelFolderError, RunError, SacMILError
from sacmil.results import Ensemble, read_results, read_scores
from sacmil.workflows import slide_pictures
from sacmil.workflows.predict import PredictionSummary, predict_slides

pytestmark = pytest.mark.usefixtures("inline_workers")  # test_items.py reads in processes


def answer(
    tmp_path: Path, *models: Path, bags: Path | None = None, **settings: Any
) -> PredictionSummary:
    given = {"heatmaps": False, "device": "cpu"} | settings
    return predict_slides(bags or tmp_path / "bags", models, tmp_path / "out", **given)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m")


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the slides that models predicted."""
    found: list[str] = []
    predict_bag = Ensemble.predict

    def spied(self: Ensemble, bag: Any) -> Any:
        found.append(bag.slide_id)
        return predict_bag(self, bag)

    monkeypatch.setattr(Ensemble, "predict", spied)
    return found


def table(out: Path) -> list[dict[str, str]]:
    with (out / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tree(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_tables_and_results_hold_the_predictions(tmp_path: Path, model: Path) -> None:
    bags = write_bags(tmp_path / "bags", "a", "b")
    run = write_run(tmp_path / "run", 2)
    answer(tmp_path, model, run)
    out = tmp_path / "out"
    found = read_results(out)
    assert found.classes == CLASSES
    assert [(m.name, m.members) for m in found.models] == [("m", 1), ("run", 2), ("ensemble", 2)]
    rows = {(row["slide_id"], row["model"]): row for row in table(out)}
    assert len(rows) == 6
    for slide in found.slides:
        bag = read_bag(bags / f"{slide.slide_id}.h5")
        single = predict(load_model(model), bag)
        one, several, joint = slide.answers
        assert one.values == tuple(single.probabilities.tolist())
        assert one.spread is None
        np.testing.assert_array_equal(read_scores(out / one.scores).scores, single.scores)
        both = np.array([one.values, several.values])
        np.testing.assert_allclose(joint.values, both.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(joint.spread, both.std(axis=0), atol=1e-12)
        row = rows[slide.slide_id, "run"]
        assert [float(row[f"p_{name}"]) for name in CLASSES] == list(several.values)
        assert [float(row[f"spread_{name}"]) for name in CLASSES] == list(several.spread)
        assert row["predicted"] == CLASSES[int(np.argmax(several.values))]
        assert (row["model_hash"], row["encoder"]) == (found.models[1].hash, "lite0")
        assert rows[slide.slide_id, "m"]["spread_tumour"] == ""
    whole = json.loads((out / "predictions.json").read_text())
    assert [slide["slide_id"] for slide in whole["slides"]] == ["a", "b"]
    assert whole["failed"] == []


def test_again_asks_nobody_and_changes_nothing(
    tmp_path: Path, model: Path, predicted: list[str]
) -> None:
    write_bags(tmp_path / "bags", "a", "b")
    answer(tmp_path, model)
    before = tree(tmp_path / "out")
    predicted.clear()
    answer(tmp_path, model)
    assert predicted == []
    assert tree(tmp_path / "out") == before


def test_only_what_has_changed_is_predicted_again(
    tmp_path: Path, model: Path, predicted: list[str]
) -> None:
    bags = write_bags(tmp_path / "bags", "a", "b", "c")
    answer(tmp_path, model)
    predicted.clear()
    write_bag(bags / "b.h5", make_bag("b", seed=9))
    (tmp_path / "out" / "scores" / "m" / "c.npz").unlink()
    answer(tmp_path, model)
    assert predicted == ["b", "c"]
    predicted.clear()
    shutil.rmtree(model)
    answer(tmp_path, write_model(model, seed=5))
    assert predicted == ["a", "b", "c"], "other weights under the same name"


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff", b'{"slide_id": "a"}'])
def test_a_damaged_record_is_made_again(
    tmp_path: Path, model: Path, predicted: list[str], damage: bytes
) -> None:
    write_bags(tmp_path / "bags", "a")
    answer(tmp_path, model)
    before = table(tmp_path / "out")
    (tmp_path / "out" / "answers" / "a.json").write_bytes(damage)
    answer(tmp_path, model)
    assert predicted == ["a", "a"]
    after = table(tmp_path / "out")
    assert [row | {"seconds": ""} for row in after] == [row | {"seconds": ""} for row in before]


def test_killed_in_the_middle_it_goes_on_where_it_was(
    tmp_path: Path, model: Path, predicted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bags(tmp_path / "bags", *"abcde")
    predict_bag = Ensemble.predict

    def dying(self: Ensemble, bag: Any) -> Any:
        if bag.slide_id == "c":
            raise KeyboardInterrupt
        return predict_bag(self, bag)

    with monkeypatch.context() as patch:
        patch.setattr(Ensemble, "predict", dying)
        with pytest.raises(KeyboardInterrupt):
            answer(tmp_path, model)
    assert predicted == ["a", "b"]
    assert not (tmp_path / "out" / "results.json").exists()
    predicted.clear()
    answer(tmp_path, model)
    assert predicted == ["c", "d", "e"]
    assert [slide.slide_id for slide in read_results(tmp_path / "out").slides] == [*"abcde"]


def test_one_bad_item_is_reported_and_the_rest_goes_on(tmp_path: Path, model: Path) -> None:
    bags = write_bags(tmp_path / "bags", *"abcd")
    (bags / "b.h5").write_bytes(b"no bag")
    write_bag(bags / "c.h5", make_bag("another slide"))
    done = answer(tmp_path, model)
    assert [record.slide_id for record in done.records] == ["a", "d"]
    assert [Path(failure.item).name for failure in done.failures] == ["b.h5", "c.h5"]
    assert "it holds the slide 'another slide'" in done.failures[1].reason
    whole = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert len(whole["failed"]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": EncoderId("uni")}, "its encoder is uni, the model's lite0"),
        ({"encoder": EncoderId("lite0", "1234")}, "other weights (1234)"),
        ({"mpp": 0.25}, "64 µm wide, the model's 128 µm"),
    ],
)
def test_a_mismatch_is_refused_unless_the_user_insists(
    tmp_path: Path, model: Path, changes: dict[str, Any], message: str
) -> None:
    write_bags(tmp_path / "bags", "a", **changes)
    refused = answer(tmp_path, model)
    (failure,) = refused.failures
    assert message in failure.reason
    assert "with the encoder lite0, tiles of 256 pixels at 0.5 µm per pixel" in failure.reason
    assert "`allow_mismatch=True`" in failure.reason
    assert "\n" not in failure.reason
    insisted = answer(tmp_path, model, allow_mismatch=True)
    assert message in insisted.records[0].warnings[0]
    assert answer(tmp_path, model).failures, "having insisted once is not insisting for ever"


def test_a_wrong_width_cannot_be_insisted_on(tmp_path: Path) -> None:
    write_bags(tmp_path / "bags", "a")
    wide = write_model(tmp_path / "wide", in_dim=7, bags=BAGS | {"dim": 7})
    (failure,) = answer(tmp_path, wide, allow_mismatch=True).failures
    assert "its features have 6 numbers, the model takes 7" in failure.reason
    assert "allow_mismatch" not in failure.reason


def test_a_card_that_says_nothing_takes_bags_with_a_warning_and_no_slides(tmp_path: Path) -> None:
    silent = write_model(tmp_path / "silent", bags=None)
    write_bags(tmp_path / "bags", "a")
    (record,) = answer(tmp_path, silent).records
    assert "could not be checked" in record.warnings[0]
    slide = write_slide(tmp_path / "s.tif", tissue_pixels(512, 512), mpp=0.5)
    with pytest.raises(ModelFolderError, match=r"does not name the encoder.*extract it with"):
        answer(tmp_path, silent, bags=slide)


@pytest.mark.parametrize(
    "name", ["..", "a:b", "<img src=x>", "a b'c\"d", "-rf", "=1+1", "ü" * 100, "x\ny", "C:\\x"]
)
def test_a_slide_may_be_called_anything_and_stays_inside(
    tmp_path: Path, model: Path, name: str
) -> None:
    write_bag(tmp_path / "bags" / f"{name}.h5", make_bag(name))
    done = answer(tmp_path, model, bags=tmp_path / "bags" / f"{name}.h5", report=True)
    assert [record.slide_id for record in done.records] == [name], done.failures
    assert read_results(tmp_path / "out").slides[0].slide_id == name
    written = table(tmp_path / "out")[0]["slide_id"]
    assert restore_cell(written) == name
    assert not written.startswith(("=", "-"))
    assert {path.name for path in tmp_path.iterdir()} == {"m", "bags", "out"}
    (page,) = (tmp_path / "out" / "reports").iterdir()
    assert "<img src=x>" not in page.read_text()


def test_a_name_that_is_not_utf8_is_reported_and_breaks_no_table(
    tmp_path: Path, model: Path
) -> None:
    bags = write_bags(tmp_path / "bags", "a", "b")
    (bags / "b.h5").rename(bags / os.fsdecode(b"\xff.h5"))
    done = answer(tmp_path, model, allow_mismatch=True)
    assert [record.slide_id for record in done.records] == ["a"]
    (failed,) = json.loads((tmp_path / "out" / "predictions.json").read_text())["failed"]
    assert "its name is not UTF-8" in failed["reason"]


@pytest.mark.parametrize("hostile", ["../../m/card.json", "/etc/hostname"])
def test_a_record_that_leads_out_of_the_folder_is_not_believed(
    tmp_path: Path, model: Path, predicted: list[str], hostile: str
) -> None:
    write_bags(tmp_path / "bags", "a")
    answer(tmp_path, model)
    record = tmp_path / "out" / "answers" / "a.json"
    content = json.loads(record.read_text())
    content["answers"][0]["pictures"] = {"overlay": hostile}
    record.write_text(json.dumps(content))
    answer(tmp_path, model, report=True)
    assert predicted == ["a", "a"]


def test_a_slide_the_model_was_trained_on_is_reported(tmp_path: Path) -> None:
    write_bags(tmp_path / "bags", "a", "b")
    known, new = answer(tmp_path, write_model(tmp_path / "m", seen=("a", "z"))).records
    assert "a model was trained on this slide" in known.warnings[0]
    assert new.warnings == ()


def test_pages_of_an_earlier_run_do_not_stay_beside_new_predictions(
    tmp_path: Path, model: Path
) -> None:
    write_bags(tmp_path / "bags", "a", "b")
    answer(tmp_path, model, report=True)
    pages = tmp_path / "out" / "reports"
    (pages / "notes.html").write_text("mine")
    fewer = answer(tmp_path, model, bags=tmp_path / "bags" / "a.h5", report=True)
    assert {page.name for page in pages.iterdir()} == {"a.html", "notes.html"}
    assert fewer.removed_reports == 1
    assert answer(tmp_path, model).removed_reports == 1
    assert {page.name for page in pages.iterdir()} == {"notes.html"}


def test_a_record_whose_path_is_a_number_is_made_again(
    tmp_path: Path, model: Path, predicted: list[str]
) -> None:
    write_bags(tmp_path / "bags", "a")
    answer(tmp_path, model)
    record = tmp_path / "out" / "answers" / "a.json"
    content = json.loads(record.read_text())
    content["answers"][0]["scores"] = 1.5
    record.write_text(json.dumps(content))
    answer(tmp_path, model)
    assert predicted == ["a", "a"]


def test_a_record_that_was_edited_is_made_again(
    tmp_path: Path, model: Path, predicted: list[str]
) -> None:
    write_bags(tmp_path / "bags", "a")
    answer(tmp_path, model)
    before = table(tmp_path / "out")
    record = tmp_path / "out" / "answers" / "a.json"
    content = json.loads(record.read_text())
    content["answers"][0] |= {"probabilities": [0.99, 0.01], "parts": [[0.99, 0.01]]}
    record.write_text(json.dumps(content))
    answer(tmp_path, model)
    assert predicted == ["a", "a"]
    assert [row["p_tumour"] for row in table(tmp_path / "out")] == [
        row["p_tumour"] for row in before
    ]


def test_a_disk_that_pictures_fill_holds_the_predictions(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_bags(tmp_path / "bags", "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr("sacmil.workflows.predict._PredictionRun._draw_record", fill)
        with pytest.raises(OSError, match="No space"):
            answer(tmp_path, model, heatmaps=True)
    assert len(table(tmp_path / "out")) == 2


# Models that are damaged.


def truncated(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


def claiming(**claims: Any) -> Any:
    def change(model: Path) -> None:
        card = json.loads((model / "card.json").read_text())
        del card["card_sha256"]  # as if written so
        (model / "card.json").write_text(json.dumps(card | claims))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "truncated or replaced"),
        (claiming(weights_sha256="0" * 64), "truncated or replaced"),
        (claiming(model="abmill"), "did you mean 'abmil'"),
        (claiming(classes=["a", "b", "c"]), "for 2 outputs"),
        (claiming(notes={"bags": {"patch_um": "wide"}}), "invalid value 'wide' for patch_um"),
        (lambda m: (m / "card.json").write_text("{"), "cannot be read as JSON"),
    ],
)
def test_a_damaged_model_is_one_sentence_before_anything_is_done(
    tmp_path: Path, model: Path, damage: Any, message: str
) -> None:
    write_bags(tmp_path / "bags", "a")
    damage(model)
    with pytest.raises(SacMILError) as raised:
        answer(tmp_path, model)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


# Slides.


@pytest.fixture
def slide(tmp_path: Path) -> Path:
    (tmp_path / "slides").mkdir()
    return write_slide(tmp_path / "slides" / "s.tif", tissue_pixels(768, 768), mpp=0.5)


def for_slides(tmp_path: Path, encoder: str, **facts: Any) -> Path:
    """A model trained on bags of the tiny encoder."""
    from sacmil.encoders import load_encoder

    loaded = load_encoder(encoder)
    known = {
        "encoder": loaded.card.name,
        "encoder_hash": loaded.hash,
        "dim": 6,
        "patch_um": 32.0,
        "tile_px": 2 * PX,
    }
    return write_model(tmp_path / "for_slides", bags=known | facts)


def test_a_slide_is_cut_and_encoded_as_the_card_says_and_only_once(
    tmp_path: Path, slide: Path, predicted: list[str]
) -> None:
    encoder = write_encoder(tmp_path / "colour.onnx")
    model = for_slides(tmp_path, encoder)
    bad = tmp_path / "slides" / "bad.tif"
    bad.write_bytes(b"II*\0 no slide")
    options = {"bags": tmp_path / "slides", "encoder": encoder, "heatmaps": True}
    done = answer(tmp_path, model, **options)
    (record,), (failure,) = done.records, done.failures
    assert Path(failure.item).name == "bad.tif"
    bag = read_bag(record.bag.path)
    assert (bag.tile_px, bag.patch_size_um, bag.encoder.name) == (64, 32, "onnx:colour.onnx")
    expected = predict(load_model(model), bag).probabilities
    assert record.answers[0].values == tuple(expected.tolist())
    (found,) = read_results(tmp_path / "out").slides
    assert found.slide == str(slide.resolve())
    assert (found.size, found.mpp) == ((768, 768), 0.5)
    for path in (found.thumbnail, *found.answers[0].heatmaps.values()):
        assert (tmp_path / "out" / path).is_file()
    before = Path(record.bag.path).stat().st_mtime_ns
    predicted.clear()
    bad.unlink()
    again = answer(tmp_path, model, **options)
    assert (predicted, again.failures) == ([], [])
    assert Path(record.bag.path).stat().st_mtime_ns == before


def test_an_encoder_with_other_weights_is_refused(tmp_path: Path, slide: Path) -> None:
    encoder = write_encoder(tmp_path / "colour.onnx")
    model = for_slides(tmp_path, encoder)
    other = write_encoder(tmp_path / "colour.onnx", seed=1)
    with pytest.raises(EncoderError, match=r"has other weights .*`allow_mismatch=True`"):
        answer(tmp_path, model, bags=slide, encoder=other)


def test_bags_get_pictures_from_the_folder_of_their_slides(tmp_path: Path, slide: Path) -> None:
    model = write_model(tmp_path / "m")
    write_slide(slide, tissue_pixels(1600, 1600), mpp=0.5)
    write_bags(tmp_path / "bags", "s", "t")
    done = answer(tmp_path, model, heatmaps=True, slides=slide.parent)
    with_slide, without = done.records
    assert set(with_slide.answers[0].pictures) == {"overlay", "map", "tiles"}
    assert set(without.answers[0].pictures) == {"overlay", "map"}
    assert (with_slide.slide, without.slide) == (str(slide.resolve()), None)


def test_a_bag_of_another_slide_is_answered_without_a_picture(tmp_path: Path, slide: Path) -> None:
    model = write_model(tmp_path / "m")
    write_bags(tmp_path / "bags", "s", slide_size=(5000, 5000))
    (record,) = answer(tmp_path, model, heatmaps=True, slides=slide.parent).records
    assert record.answers[0].pictures == {}
    assert "no heatmap: " in record.warnings[-1]


def test_a_model_that_scores_tiles_per_class_gets_a_picture_for_each(
    tmp_path: Path, slide: Path
) -> None:
    classes = ("normal", "tumour", "a/b")
    model = write_model(tmp_path / "m", kind="dsmil", num_classes=3, classes=classes)
    write_slide(slide, tissue_pixels(1600, 1600), mpp=0.5)
    write_bags(tmp_path / "bags", "s")
    answer(tmp_path, model, heatmaps=True, slides=slide.parent)
    (found,) = read_results(tmp_path / "out").slides
    assert set(found.answers[0].heatmaps) == {*classes, "score"}
    drawn = [(tmp_path / "out" / path).read_bytes() for path in found.answers[0].heatmaps.values()]
    assert len(set(drawn)) == 4
    single = predict(load_model(model), read_bag(tmp_path / "bags" / "s.h5"))
    kept = read_scores(tmp_path / "out" / found.answers[0].scores)
    np.testing.assert_array_equal(kept.class_scores, single.class_scores)


def test_slides_and_classes_whose_names_meet_keep_their_own_pictures(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", kind="dsmil", classes=("b", "score"))
    write_bags(tmp_path / "bags", "a", "a_b", "classes")
    answer(tmp_path, model, heatmaps=True)
    answers = [slide.answers[0] for slide in read_results(tmp_path / "out").slides]
    paths = [path for one in answers for path in one.heatmaps.values()]
    assert len(set(paths)) == len(paths) == 6
    assert all(one.heatmaps["score"].endswith(f"/m/{name}_overlay.png")
               for one, name in zip(answers, ("a", "a_b", "classes"), strict=True))  # fmt: skip


def test_a_lost_picture_of_a_class_is_drawn_again(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", kind="dsmil")
    write_bags(tmp_path / "bags", "a")
    answer(tmp_path, model, heatmaps=True)
    lost = tmp_path / "out" / "heatmaps" / "m" / "classes" / "tumour" / "a_overlay.png"
    before = lost.read_bytes()
    lost.unlink()
    answer(tmp_path, model, heatmaps=True)
    assert lost.read_bytes() == before


def test_a_full_disk_is_a_failure_that_costs_pictures_and_no_answers(
    tmp_path: Path, model: Path, predicted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a.png")

    write_bags(tmp_path / "bags", "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(slide_pictures, "save_picture", full)
        done = answer(tmp_path, model, heatmaps=True)
    assert {failure.reason for failure in done.failures} == {
        "no heatmap: a.png: No space left on device; the disk is full: free some space, or choose "
        "another folder"
    }
    assert len(table(tmp_path / "out")) == 2
    predicted.clear()
    again = answer(tmp_path, model, heatmaps=True)
    assert (predicted, again.failures) == ([], [])
    assert all(record.answers[0].pictures for record in again.records)


@pytest.mark.parametrize(
    "file", ["card.json", "config.yaml", "predictions.csv", "member_0/model.onnx"]
)
def test_answers_are_not_put_into_a_model_or_a_run(tmp_path: Path, model: Path, file: str) -> None:
    write_bags(tmp_path / "bags", "a")
    (tmp_path / "out" / file).parent.mkdir(parents=True)
    (tmp_path / "out" / file).write_text("of a training")
    with pytest.raises(RunError, match="choose another `out`"):
        answer(tmp_path, model)
    assert tree(tmp_path / "out") == {file: b"of a training"}


def test_a_file_that_vanishes_is_reported_and_the_others_go_on(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = write_bags(tmp_path / "bags", "a", "b")
    predict_bag = Ensemble.predict

    def losing(self: Ensemble, bag: Any) -> Any:
        (bags / "b.h5").unlink(missing_ok=True)
        return predict_bag(self, bag)

    monkeypatch.setattr(Ensemble, "predict", losing)
    done = answer(tmp_path, model)
    assert [record.slide_id for record in done.records] == ["a"]
    assert "b.h5" in done.failures[0].reason


def test_only_a_model_in_torch_loads_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import sacmil.cli.predict
import sacmil.workflows.predict
import sacmil.workflows.input_requirements
import sacmil.workflows.slide_report
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
