"""Training one model is cross-validation with a single job."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cohort import Material

from sacmil import load_model
from sacmil.cohorts.splits import Fold
from sacmil.errors import CohortError, CohortWarning, ConfigError, SacMILError
from sacmil.training.config import TrainingConfig
from sacmil.training.cross_validate import cross_validate
from sacmil.training.train import train

QUICK = {"epochs": 2, "lr": 1e-2}


def test_a_fold_is_trained_as_in_cross_validation(dataset: Material, tmp_path: Path) -> None:
    given = {"folds": dataset.folds, "options": QUICK}
    single = train(dataset.data, "mean_pool", out=tmp_path / "one", fold=1, device="cpu", **given)
    whole = cross_validate(dataset.data, "mean_pool", out=tmp_path / "all", devices="cpu", **given)
    assert single.folder == tmp_path / "one"
    weights = [f / "model.safetensors" for f in (single.folder, whole.model_folders()[1])]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    first = whole.predictions.select(whole.predictions.fold == 1)
    assert single.predictions.slide_id.tolist() == first.slide_id.tolist()
    assert (single.predictions.probabilities == first.probabilities).all()


def test_every_epoch_is_reported_with_loss_and_validation_auc(
    dataset: Material, tmp_path: Path
) -> None:
    lines = []
    train(
        dataset.data,
        {"model": "mean_pool", "recipe": "official"},
        out=tmp_path / "run",
        folds=2,
        options=["epochs=2"],
        on_progress=lambda *line: lines.append(line),
    )
    epochs = [line for line in lines if line[0] == "training mean_pool"]
    assert [line[1:3] for line in epochs] == [(1, 2), (2, 2)]
    assert all("loss " in line[3] for line in epochs)
    assert all(", val AUC " in line[3] for line in epochs)


def test_training_on_every_slide_keeps_the_last_epoch(dataset: Material, tmp_path: Path) -> None:
    config = TrainingConfig(model="mean_pool", recipe="official", training=QUICK)
    with pytest.warns(CohortWarning, match="The last of 2 epochs is kept"):
        run = train(dataset.data, config, out=tmp_path / "run", every_slide=True)
    assert load_model(run.folder).name == "mean_pool"
    assert len(run.predictions) == 0
    with pytest.raises(ConfigError, match="`fold` and `every_slide` exclude each other"):
        train(dataset.data, config, out=tmp_path / "run", every_slide=True, fold=1)


def test_a_failed_job_raises_its_error(dataset: Material, tmp_path: Path) -> None:
    fold = dataset.folds[0]
    val = tuple(s.slide_id for s in dataset.cohort.get_slides(fold.val) if s.label == 0)
    given = {"recipe": "official", "options": QUICK, "folds": [fold._replace(val=val)]}
    with pytest.raises(SacMILError, match="one class only"):
        train(dataset.data, "mean_pool", out=tmp_path / "run", **given)


def test_wrong_arguments_are_rejected_before_the_folder_is_made(
    dataset: Material, tmp_path: Path
) -> None:
    data, out = dataset.data, tmp_path / "run"
    with pytest.raises(ConfigError, match="there are folds 0 to 1"):
        train(data, "mean_pool", out=out, folds=2, fold=7)
    with pytest.raises(ConfigError, match="has the models abmil, dsmil; name the one"):
        train(data, out=out, config={"abmil": {}, "dsmil": {}})
    with pytest.raises(CohortError, match="zebra: is not in the cohort"):
        train(data, "mean_pool", out=out, folds=[Fold(("zebra",), (), ())])
    with pytest.raises(ConfigError, match="expected one device or more"):
        cross_validate(data, "mean_pool", out=out, devices=[])
    with pytest.raises(ConfigError, match="models have different seeds"):
        cross_validate(data, {"abmil": {"seed": 1}, "dsmil": {}}, out=out)
    assert not out.exists()
