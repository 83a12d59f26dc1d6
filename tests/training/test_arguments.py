"""A wrong argument of training is an error that names it, before a run folder is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from small_cohort import Material, write_material

from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_cohort import write_splits
from sacmil.errors import ConfigError, DeviceError, OptionError, SacMILError
from sacmil.training.config import resolve_configs
from sacmil.training.train import cross_validate, train


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return write_material(tmp_path_factory.mktemp("bags"), patients=8)


@pytest.fixture(scope="module")
def data(material: Material) -> Dataset:
    return material.data


@pytest.mark.parametrize("wrong", ["cohort", "table.csv", None, pd.DataFrame({"a": [1]})])
@pytest.mark.parametrize("function", [train, cross_validate])
def test_training_needs_a_dataset(
    function: Any, wrong: Any, material: Material, tmp_path: Path
) -> None:
    given = material.cohort if isinstance(wrong, str) and wrong == "cohort" else wrong
    with pytest.raises(OptionError, match=r"`dataset` is [\s\S]*Dataset\(cohort, bags\)"):
        function(given, "mean_pool", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"models": []}, r"`models` is \[\]"),
        ({"models": {}}, "`models` has no model"),
        ({"models": 5}, "`models` is 5"),
        ({"models": [["abmil"]]}, r"`models` is \[\['abmil'\]\]"),
        ({"seeds": [0, 0]}, r"`seeds` is \[0, 0\]; expected how many, or different"),
        ({"seeds": 0}, "`seeds` is 0; expected a whole number from 1 up"),
        ({"seeds": []}, r"`seeds` is \[\]"),
        ({"seeds": "01"}, "`seeds` is '01'"),
        ({"seeds": None}, "`seeds` is None"),
        ({"folds": []}, r"`folds` is \[\]"),
        ({"folds": None}, "`folds` is None"),
        ({"threads": "a"}, "`threads` is 'a'"),
        ({"threads": 0}, "`threads` is 0"),
        ({"cache": "disk"}, "`cache` is 'disk'; known are: auto"),
        ({"engine": "dask"}, "`engine` is 'dask'; known are: local, ray"),
        ({"devices": [0, 1]}, r"`devices` is \[0, 1\]"),
        ({"devices": []}, r"`devices` is \[\]"),
        ({"per_gpu": 0}, "`per_gpu` is 0"),
        ({"config": 5}, "`config` is 5"),
        ({"out": None}, "`out` is None"),
        ({"out": ""}, "`out` has an empty path"),
    ],
)
def test_cross_validation_rejects(
    arguments: dict[str, Any], found: str, data: Dataset, tmp_path: Path
) -> None:
    given = {"models": "mean_pool", "folds": 2, "out": tmp_path / "run", "devices": "cpu"}
    with pytest.raises((OptionError, ConfigError), match=found):
        cross_validate(data, **{**given, **arguments})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"seed": "x"}, "`seed` is 'x'"),
        ({"fold": "a"}, "`fold` is 'a'"),
        ({"device": 0}, "`device` is 0"),
        ({"threads": 0}, "`threads` is 0"),
        ({"cache": "disk"}, "`cache` is 'disk'"),
        ({"model": 5}, "`model` is 5"),
    ],
)
def test_training_rejects(
    arguments: dict[str, Any], found: str, data: Dataset, tmp_path: Path
) -> None:
    given = {"model": "mean_pool", "folds": 2, "out": tmp_path / "run", "device": "cpu"}
    with pytest.raises((OptionError, ConfigError), match=found):
        train(data, **{**given, **arguments})
    assert not (tmp_path / "run").exists()


def test_a_missing_device_is_rejected_before_training(data: Dataset, tmp_path: Path) -> None:
    for device in ("gpu", "cuda:99"):
        with pytest.raises(DeviceError, match=f"the device '{device}' cannot be used"):
            train(data, "mean_pool", out=tmp_path / "run", folds=2, device=device)
        with pytest.raises(DeviceError, match=f"the device '{device}' cannot be used"):
            cross_validate(data, "mean_pool", out=tmp_path / "run", folds=2, devices=device)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("function", [train, cross_validate])
@pytest.mark.parametrize("out", ["file", "file/run"])
def test_a_run_folder_is_no_file(function: Any, out: str, data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"file: is a file; expected a folder, choose.*`out`"):
        function(data, "mean_pool", out=tmp_path / out, folds=2)


@pytest.mark.parametrize("options", [{1: 2}, [("epochs", 1)], pd.Series({"a": 1}), None, 5])
def test_options_are_values_by_name_or_texts(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"`options` has .*; expected values by name"):
        resolve_configs("abmil", options=options)


def test_a_single_text_is_one_option() -> None:
    assert resolve_configs("abmil", options="epochs=1")["abmil"].to_recipe().epochs == 1


def test_a_configuration_of_another_model_is_an_error() -> None:
    with pytest.raises(ConfigError, match="`model` is abmil, but `config` has model: dsmil"):
        resolve_configs("abmil", config={"model": "dsmil"}, argument="model")
    with pytest.raises(ConfigError, match="`models` is abmil, dsmil, but"):
        resolve_configs(["abmil", "dsmil"], config={"model": "dsmil"})
    assert list(resolve_configs("dsmil", config={"model": "dsmil"})) == ["dsmil"]
    assert list(resolve_configs(["abmil", "dsmil"], config={"seed": 1})) == ["abmil", "dsmil"]


def test_numbers_of_numpy_and_folders_of_splits_train(material: Material, tmp_path: Path) -> None:
    write_splits(tmp_path / "splits", material.folds, material.cohort)
    small = {"epochs": np.int64(1)}
    run = cross_validate(
        material.data,
        "mean_pool",
        out=tmp_path / "all",
        folds=str(tmp_path / "splits"),
        seeds=np.arange(2),
        threads=np.int64(1),
        devices=torch.device("cpu"),
        options=small,
    )
    assert not run.failures
    assert {*run.predictions.seed.tolist()} == {0, 1}
    one = train(
        material.data,
        "mean_pool",
        out=tmp_path / "one",
        folds=tmp_path / "splits",
        fold=np.int64(1),
        seed=np.int64(1),
        device="cpu",
        options=small,
    )
    weights = [f / "model.safetensors" for f in (one.folder, run.model_folders()[3])]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_splits_that_do_not_exist_are_an_error(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(SacMILError, match="nope: 1 problem"):
        train(data, "mean_pool", out=tmp_path / "run", folds="nope", device="cpu")
