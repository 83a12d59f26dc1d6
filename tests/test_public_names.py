"""The names other people's scripts use."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import sacmil
from sacmil import errors

PUBLIC = [
    "Bag",
    "Cohort",
    "Comparison",
    "Dataset",
    "EncoderId",
    "Evaluation",
    "MILModel",
    "Output",
    "Prediction",
    "Recipe",
    "Run",
    "Task",
    "__version__",
    "calibrate",
    "compare",
    "convert",
    "convert_cells",
    "convert_model",
    "create_model",
    "cross_validate",
    "describe_model",
    "draw_heatmaps",
    "embed",
    "embed_bags",
    "evaluate",
    "export_model",
    "extract",
    "extract_slide",
    "list_formats",
    "list_models",
    "load_model",
    "load_reference",
    "load_runtime",
    "make_folds",
    "predict",
    "predict_slides",
    "read_bag",
    "read_cohort",
    "register_model",
    "save_model",
    "split_cohort",
    "train",
    "write_bag",
]


def test_the_public_names_are_these() -> None:
    assert sacmil.__all__ == PUBLIC
    assert dir(sacmil) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_leads_somewhere_and_is_explained(name: str) -> None:
    value = getattr(sacmil, name)
    assert name == "__version__" or value.__doc__


def test_no_module_hides_a_function_of_its_name() -> None:
    for module in ("training.train", "cohorts.split_cohort"):
        import_module(f"sacmil.{module}")
        assert inspect.isfunction(getattr(sacmil, module.partition(".")[2]))


@pytest.mark.parametrize(
    "name",
    ["Cohort", "Dataset", "Run", "cross_validate", "make_folds", "read_cohort", "split_cohort"]
    + ["train"],
)
def test_the_data_side_of_the_front_door_is_typed_and_has_an_example(name: str) -> None:
    value = getattr(sacmil, name)
    parameters = inspect.signature(value).parameters.values()
    assert all(parameter.annotation is not parameter.empty for parameter in parameters)
    assert "Example:" in value.__doc__
    assert ">>> " in value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'zebra'"):
        _ = sacmil.zebra


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = re.findall(r"^[\s│├└─]*(\w+(?:Error|Warning))\b", errors.__doc__ or "", re.MULTILINE)
    defined = [name for name in vars(errors) if name.endswith(("Error", "Warning"))]
    assert sorted(drawn) == sorted(defined)
    assert all(
        issubclass(getattr(errors, name), errors.SacMILError)
        for name in defined
        if name.endswith("Error")
    )


@pytest.mark.parametrize("source", sorted(Path(sacmil.__file__).parent.rglob("*.py")))
def test_every_sacmil_name_a_message_gives_exists(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    for name in re.findall(r"with sacmil\.(\w+)", text):
        assert name in PUBLIC
    for name in re.findall(r"\b((?:save|load|create|list|read|write)_(?:model|bag)s?)\b", text):
        assert name in PUBLIC


@pytest.mark.parametrize("folder", ["cohorts", "training"])
def test_no_message_of_the_data_side_names_an_option_of_the_command_line(folder: str) -> None:
    for source in (Path(sacmil.__file__).parent / folder).rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        assert not re.findall(r"--\{?[a-z]+|[\"\s]-o\b", text), source


def test_every_module_is_reached_without_an_import_of_its_own() -> None:
    folder = Path(sacmil.__file__).parent
    files = {file.stem for file in folder.glob("[a-z]*.py")}
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    names = (files | packages) - {"cli", "csv_text", "hdf5", "yaml_values"}
    code = f"import sacmil; [getattr(sacmil, name).__name__ for name in {sorted(names)}]"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wrong_option_is_no_error_of_a_model() -> None:
    assert not issubclass(errors.OptionError, errors.ModelError)
    assert not issubclass(errors.OptionError, errors.ConfigError)
    assert issubclass(errors.OptionError, ValueError)
