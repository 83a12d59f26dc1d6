"""``sacmil heatmap``."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from slide_maker import tissue_pixels, write_slide

from sacmil import Bag, create_model, save_model, write_bag

CLASSES = ("normal", "tumour")


def make_bag(folder: Path, slide_id: str, **options) -> Path:
    coords = np.array([(x, y) for y in range(0, 700, 100) for x in range(0, 900, 100)])
    features = np.random.default_rng(0).normal(size=(len(coords), 8)).astype(np.float32)
    path = folder / "bags" / f"{slide_id.replace('/', '_')}.h5"
    write_bag(path, Bag(slide_id, features, coords, 100, mpp=0.5, **options))
    return path


def make_model(folder: Path, name: str, **notes) -> Path:
    model = create_model(name, in_dim=8, num_classes=2)
    save_model(folder / name, model, classes=CLASSES, notes=notes)
    return folder / name


def test_a_bag_and_its_slide_become_pictures_geojson_and_a_table(sacmil, tmp_path) -> None:
    write_slide(tmp_path / "a.tif", tissue_pixels(900, 700, 0))
    labels = np.arange(63) % 2
    bag = make_bag(tmp_path, "a", labels=labels, bounds_origin=(10, 20))
    model = make_model(tmp_path, "sac_mil")
    out = tmp_path / "out"
    line = ["--model", model, "--slides", tmp_path, "--geojson", "--csv", "--out", out]
    done = sacmil("heatmap", bag, *line)
    assert done.code == 0, done.err
    names = ["a_overlay.png", "a_map.png", "a_tiles.png", "a.geojson.gz", "a.csv"]
    assert done.out.splitlines() == [str(out / name) for name in names]
    assert {path.name for path in out.glob("[!.]*")} == set(names)
    features = json.loads(gzip.decompress((out / "a.geojson.gz").read_bytes()))["features"]
    assert features[0]["geometry"]["coordinates"][0][0] == [-10, -20]
    rows = list(csv.DictReader((out / "a.csv").read_text().splitlines()))
    assert [int(row["label"]) for row in rows] == labels.tolist()
    assert [float(row["score"]) for row in rows] == pytest.approx(
        [f["properties"]["measurements"]["score"] for f in features]
    )


def test_without_the_slide_a_sentence_says_what_is_missing(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "abmil")
    done = sacmil("heatmap", bag, "--model", model, "--out", tmp_path / "out")
    assert done.code == 0
    assert "without top tiles" in done.err
    assert len(done.out.splitlines()) == 2


def test_classes_are_drawn_where_the_model_scores_them(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "clam_mb")
    line = ["--model", model, "--class", "tumour", "--class", "normal", "--csv", "--out", tmp_path]
    done = sacmil("heatmap", bag, *line)
    assert done.code == 0, done.err
    assert (tmp_path / "a_tumour_overlay.png").is_file()
    assert (tmp_path / "a_normal_overlay.png").is_file()
    header = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert header == "x,y,patch_size,score normal,score tumour,score tumour (rank)"


def test_a_class_without_scores_is_an_error_and_no_picture(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "sac_mil")
    out = tmp_path / "out"
    done = sacmil("heatmap", bag, "--model", model, "--class", "tumour", "--out", out)
    assert done.code == 2
    assert "leave the class out" in done.err
    assert not list(out.rglob("*.png"))


def test_one_bad_bag_does_not_stop_the_others(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "abmil")
    (tmp_path / "bags" / "b.h5").write_bytes(b"no bag")
    done = sacmil("heatmap", bag.parent, "--model", model, "--out", tmp_path / "out")
    assert done.code == 1
    assert "b.h5" in done.err
    assert (tmp_path / "out" / "a_overlay.png").is_file()


def test_a_bag_of_another_encoder_is_refused_unless_that_is_meant(sacmil, tmp_path) -> None:
    bag = make_bag(tmp_path, "a", encoder=("uni_v1", None))
    facts = {"encoder": "lite0", "encoder_hash": None, "dim": 8, "patch_um": 50, "tile_px": 100}
    model = make_model(tmp_path, "abmil", bags=facts)
    line = ["heatmap", bag, "--model", model, "--out", tmp_path / "out"]
    refused = sacmil(*line)
    assert refused.code == 1
    assert "its encoder is uni_v1, the model's lite0" in refused.err
    assert sacmil(*line, "--allow-mismatch").code == 0


def test_a_hostile_slide_id_does_not_escape(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "../../x"), make_model(tmp_path, "abmil")
    out = tmp_path / "deep" / "out"
    done = sacmil("heatmap", bag, "--model", model, "--geojson", "--csv", "--out", out)
    assert done.code == 0, done.err
    assert {Path(line).parent for line in done.out.splitlines()} == {out}
    assert len(list(out.glob("[!.]*"))) == 4


def test_truth_of_one_slide_beside_many_bags_is_refused(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "abmil")
    make_bag(tmp_path, "b")
    truth = tmp_path / "a.xml"
    truth.write_text("<ASAP_Annotations/>")
    line = ["--model", model, "--truth", truth, "--out", tmp_path / "out"]
    done = sacmil("heatmap", bag.parent, *line)
    assert done.code == 2
    assert "holds the annotation of one slide, and there are 2 bags" in done.err


def test_an_unknown_class_is_reported_once_and_nothing_is_drawn(sacmil, tmp_path) -> None:
    for name in ("a", "b"):
        make_bag(tmp_path, name)
    out = tmp_path / "out"
    line = ["--out", out, "--class", "normal", "--class", "tumor"]
    done = sacmil("heatmap", tmp_path / "bags", "--model", make_model(tmp_path, "dsmil"), *line)
    assert done.code == 2
    assert done.err.count("has no class 'tumor'; did you mean 'tumour'?") == 1
    assert not out.exists()


def test_a_model_without_scores_per_class_says_so_once(sacmil, tmp_path) -> None:
    for name in ("a", "b"):
        make_bag(tmp_path, name)
    line = ["--model", make_model(tmp_path, "abmil"), "--class", "tumour", "--out", tmp_path / "o"]
    done = sacmil("heatmap", tmp_path / "bags", *line)
    assert (done.code, done.err.count("this model scores tiles, not tiles per class")) == (2, 1)


def test_a_slide_is_sent_to_predict(sacmil, tmp_path) -> None:
    slide = write_slide(tmp_path / "a.tif", tissue_pixels(900, 700, 0))
    model = make_model(tmp_path, "abmil")
    done = sacmil("heatmap", slide, "--model", model, "--out", tmp_path / "out")
    assert done.code == 1
    assert "is not a bag" in done.err
    assert "sacmil predict" in done.err


def test_a_bag_of_another_width_is_not_insisted_on(sacmil, tmp_path) -> None:
    bag = make_bag(tmp_path, "a")
    model = create_model("abmil", in_dim=9, num_classes=2)
    save_model(tmp_path / "m", model, classes=CLASSES)
    line = ["--model", tmp_path / "m", "--allow-mismatch", "--out", tmp_path / "out"]
    done = sacmil("heatmap", bag, *line)
    assert done.code == 1
    assert "its features have 8 numbers, the model takes 9" in done.err
    assert "--allow-mismatch" not in done.err


def test_a_run_gets_no_pictures_among_its_files(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "abmil")
    done = sacmil("heatmap", bag, "--model", model, "--out", model)
    assert done.code == 2
    assert "holds a run or a model; choose another --out" in done.err
    assert not list(model.glob("**/*.png"))


def test_a_second_model_is_rejected_not_ignored(sacmil, tmp_path) -> None:
    bag, model = make_bag(tmp_path, "a"), make_model(tmp_path, "abmil")
    done = sacmil("heatmap", bag, "--model", model, "--model", model, "--out", tmp_path / "out")
    assert done.code == 2
    assert "expected one model" in done.err
