"""One training job: what it reads when, what it writes, and that it runs once."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from small_cohort import write_material

from sacmil import load_model, predict, read_bag, write_bag
from sacmil.card import read_card
from sacmil.errors import ConfigError, RunError, SacMILError
from sacmil.metrics.classification import auc, average_precision
from sacmil.results import LOCALIZATION_FILE, read_localization, read_predictions
from sacmil.training.config import TrainingConfig
from sacmil.training.job import DeviceConfig, TrainingJob, list_labeled_bags, run_job

TRAINING = {"epochs": 3, "lr": 1e-2}
OPTIONS = {"dim": 16, "k": 4}


def make_job(dataset, folder, recipe="official", **changes) -> TrainingJob:
    data = dataset.data.with_hashes(dict.fromkeys(dataset.bags, "0"))
    train, val, test = (list_labeled_bags(data, ids) for ids in dataset.folds[0])
    config = TrainingConfig(recipe=recipe, options=OPTIONS, training=TRAINING)
    given = {"config": config, "train": train, "val": val, "test": test, **changes}
    return TrainingJob(folder=folder, name="sac", task=data.cohort.task, fold=0, **given)


class Loader:
    """Counts what is read, and in what order."""

    def __init__(self) -> None:
        self.read = []

    def __call__(self, path):
        self.read.append(path.stem)
        return read_bag(path)


@pytest.mark.parametrize("recipe", ["paper", "official"])
def test_the_test_set_is_read_once_after_everything_else(dataset, tmp_path, recipe) -> None:
    loader, reads = Loader(), []
    job = make_job(dataset, tmp_path / "job", recipe)
    run_job(job, read=loader, on_epoch=lambda line: reads.append(len(loader.read)))
    test = [source.slide.slide_id for source in job.test]
    test_reads = [name for name in loader.read if name in test]
    assert sorted(test_reads) == sorted(test), "each test bag once"
    assert loader.read[-len(test) :] == test_reads, "after every other"
    assert reads[-1] <= len(loader.read) - len(test), "and after the last epoch"


@pytest.mark.parametrize("monitor", ["last", "val_loss"])
def test_the_card_counts_what_the_model_was_trained_on(dataset, tmp_path, monitor) -> None:
    config = TrainingConfig(model="mean_pool", training={**TRAINING, "monitor": monitor})
    job = make_job(dataset, tmp_path / "job", config=config)
    run_job(job)
    train, val = len(job.train), len(job.val)
    counts = {"train": train + val, "val": 0} if monitor == "last" else {"train": train, "val": val}
    assert read_card(job.folder).training["slides"] == {**counts, "test": len(job.test)}


def add_instance_labels(dataset) -> None:
    """In malignant slides: unknown, negative, positive and so on; benign ones have no labels."""
    for slide in dataset.cohort.slides:
        bag = read_bag(dataset.bags[slide.slide_id])
        if slide.label:
            write_bag(dataset.bags[slide.slide_id], replace(bag, labels=np.arange(30) % 3 - 1))


def test_localisation_is_of_the_test_slides_by_the_model_of_their_fold(dataset, tmp_path) -> None:
    config = TrainingConfig(model="mean_pool", training={"epochs": 1})
    run_job(make_job(dataset, tmp_path / "without", config=config))
    assert not (tmp_path / "without" / LOCALIZATION_FILE).exists()
    add_instance_labels(dataset)
    job = make_job(dataset, tmp_path / "job", config=config)
    run_job(job)
    for name in ("predictions.csv", "model.safetensors"):
        same = [(tmp_path / folder / name).read_bytes() for folder in ("without", "job")]
        assert same[0] == same[1], "labels change nothing else"
    malignant = [source.slide for source in job.test if source.slide.label]
    rows = read_localization(tmp_path / "job")
    assert [row[:5] for row in rows] == [
        (slide.slide_id, slide.patient_id, 0, 0, "sac") for slide in malignant
    ]
    trained = load_model(tmp_path / "job")
    for row in rows:
        bag = read_bag(dataset.bags[row.slide_id])
        scores = predict(trained, bag).class_scores[:, 1]
        known = bag.labels >= 0
        assert (row.instances, row.positives) == (20, 10)
        assert row.auc == pytest.approx(auc(bag.labels[known], scores[known]))
        expected = average_precision(bag.labels[known], scores[known])
        assert row.average_precision == pytest.approx(expected)


def test_epochs_are_known_before_training(dataset, tmp_path) -> None:
    """The validation set counts where it is trained on."""
    job = make_job(dataset, tmp_path)

    def epochs(monitor: str) -> int:
        training = {"monitor": monitor, "min_steps": 40 * len(job.train)}
        return replace(job, config=TrainingConfig(options=OPTIONS, training=training)).epochs

    assert epochs("val_auc") == 40
    both = len(job.train) + len(job.val)
    assert epochs("last") == -(-40 * len(job.train) // both) < 40


def test_the_validation_set_trains_only_where_the_last_epoch_is_kept(dataset, tmp_path) -> None:
    """With the labels of the validation set flipped, only the paper's weights change."""
    val = make_job(dataset, tmp_path).val
    flipped = tuple(s._replace(slide=s.slide._replace(label=1 - s.slide.label)) for s in val)

    def weights(recipe: str, val: tuple) -> list:
        config = TrainingConfig(recipe=recipe, options=OPTIONS, training={"epochs": 1})
        folder = tmp_path / f"{recipe}-{val is flipped}"
        run_job(make_job(dataset, folder, config=config, val=val))
        return [value.tolist() for value in load_model(folder).state_dict().values()]

    assert weights("official", val) == weights("official", flipped)
    assert weights("paper", val) != weights("paper", flipped)


def test_the_folder_is_a_model_folder_whose_predictions_are_the_models(dataset, tmp_path) -> None:
    job = make_job(dataset, tmp_path / "job")
    run_job(job)
    model = load_model(job.folder)
    assert model.classes == ("benign", "malignant")
    table = read_predictions(job.folder)
    assert set(table.split) == {"val", "test"}
    for row in range(len(table)):
        found = predict(model, read_bag(dataset.bags[table.slide_id[row]]))
        np.testing.assert_allclose(table.probabilities[row], found.probabilities, atol=1e-6)
    notes = json.loads((job.folder / "card.json").read_text())["notes"]
    assert notes["training"]["fingerprint"] == job.fingerprint
    assert notes["bags"] == {
        "encoder": None,
        "encoder_hash": None,
        "dim": 6,
        "patch_um": 128.0,
        "patch_px": None,
        "tile_px": None,
        "tissue": None,
    }
    assert yaml.safe_load((job.folder / "config.yaml").read_text()) == job.config.to_dict()
    lines = (job.folder / "metrics.csv").read_text().splitlines()
    assert lines[0] == "stage,epoch,loss,lr,val_loss,val_auc,seconds"
    assert len(lines) == 4
    assert not (job.folder / "checkpoint.safetensors").exists()
    assert not list(job.folder.glob(".*"))


def test_a_finished_job_is_not_run_again_and_another_is_rejected(dataset, tmp_path) -> None:
    job = make_job(dataset, tmp_path / "job")
    run_job(job)
    loader = Loader()
    run_job(job, read=loader)
    assert loader.read == []
    other = TrainingConfig(recipe="official", options=OPTIONS, training=TRAINING | {"lr": 1.0})
    for changed in (
        make_job(dataset, job.folder, config=other),
        make_job(dataset, job.folder, train=job.train[1:]),
        make_job(dataset, job.folder, train=(job.train[0]._replace(sha256="1"), *job.train[1:])),
    ):
        with pytest.raises(RunError, match="other data or with other settings"):
            run_job(changed)


def test_a_job_begun_with_other_settings_is_not_overwritten(dataset, tmp_path) -> None:
    class Stop(Exception):
        pass

    def stop(line) -> None:
        raise Stop

    begun = make_job(
        dataset, tmp_path / "job", config=TrainingConfig(options=OPTIONS, training=TRAINING)
    )
    with pytest.raises(Stop):
        run_job(begun, on_epoch=stop)
    before = (begun.folder / "metrics.csv").read_bytes()
    with pytest.raises(RunError, match="other data or with other settings"):
        run_job(make_job(dataset, tmp_path / "job"))
    assert (begun.folder / "metrics.csv").read_bytes() == before


def test_bfloat16_is_rejected_where_it_would_be_very_slow(dataset, tmp_path, monkeypatch) -> None:
    config = TrainingConfig(options=OPTIONS, training=TRAINING, precision="bfloat16")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(ConfigError, match="this CPU does not support it"):
        run_job(make_job(dataset, tmp_path / "job", config=config))


def test_probabilities_of_bfloat16_sum_to_one(dataset, tmp_path) -> None:
    """Autocast's softmax has half the digits on a CPU: what is written must be readable."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU does not compute in bfloat16")
    for name in ("mean_pool", "dsmil", "transmil"):
        options = {"dim": 16} if name == "transmil" else {}
        config = TrainingConfig(
            model=name, options=options, training=TRAINING, precision="bfloat16"
        )
        job = make_job(dataset, tmp_path / name, config=config)
        run_job(job)
        found = read_predictions(job.folder).probabilities
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)


def test_a_bag_without_a_prediction_is_named(dataset, tmp_path) -> None:
    job = make_job(dataset, tmp_path / "job")
    lost = job.test[0].slide.slide_id

    def read(path):
        bag = read_bag(path)
        huge = np.full(bag.features.shape, 3e38, dtype=np.float32)
        return replace(bag, features=huge) if path.stem == lost else bag

    with pytest.raises(SacMILError, match=f"{lost}: the model predicts .*nan"):
        run_job(job, read=read)


def test_a_damaged_checkpoint_is_a_fresh_start(dataset, tmp_path) -> None:
    job = make_job(dataset, tmp_path / "job")
    job.folder.mkdir()
    for content in (b"", b"x" * 100, b"\xff" * 8):
        (job.folder / "checkpoint.safetensors").write_bytes(content)
    run_job(job)
    assert job.is_finished()


def test_one_output_gives_two_probabilities(dataset, tmp_path) -> None:
    config = TrainingConfig(model="abmil", options={"hidden": 8}, training=TRAINING)
    object.__setattr__(config, "options", {"hidden": 8, "num_classes": 1})
    job = make_job(dataset, tmp_path / "job", config=config)
    run_job(job)
    table = read_predictions(job.folder)
    np.testing.assert_allclose(table.probabilities.sum(1), 1)


def test_an_unknown_device_is_rejected(dataset, tmp_path) -> None:
    job = make_job(dataset, tmp_path / "job")
    with pytest.raises(SacMILError, match=r"cuda:17.*sacmil doctor"):
        run_job(job, DeviceConfig("cuda:17"))
    assert torch.get_num_threads() >= 1


def test_class_weights_lift_the_rare_class(tmp_path) -> None:
    """Trained on one slide of class 1 among many of class 0, weights raise its probability."""
    dataset = write_material(tmp_path / "bags", patients=16)
    job = make_job(dataset, tmp_path / "x")
    common = [s for s in job.train if s.slide.label == 0]
    rare = [s for s in job.train if s.slide.label == 1][:1]

    def mean_probability(weights: str) -> float:
        config = TrainingConfig(
            model="mean_pool",
            training={"epochs": 5, "lr": 1e-3, "class_weights": weights},
        )
        chosen = make_job(
            dataset, tmp_path / weights, config=config, train=(*common, *rare), val=()
        )
        run_job(chosen)
        return float(read_predictions(chosen.folder).probabilities[:, 1].mean())

    assert mean_probability("balanced") > mean_probability("none") + 0.02
