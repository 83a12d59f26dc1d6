"""SAC-MIL and other models: predictions for whole slides by multiple instance learning.

Names are loaded on first use, so importing the package imports neither torch nor h5py.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sacmil._version import __version__ as __version__

if TYPE_CHECKING:
    from sacmil.bag import Bag as Bag
    from sacmil.bag import EncoderId as EncoderId
    from sacmil.cohorts.cohort import Cohort as Cohort
    from sacmil.cohorts.cohort import read_cohort as read_cohort
    from sacmil.cohorts.dataset import Dataset as Dataset
    from sacmil.cohorts.split_cohort import split_cohort as split_cohort
    from sacmil.cohorts.splits import make_folds as make_folds
    from sacmil.deploy.export import export_model as export_model
    from sacmil.deploy.runtime import load_runtime as load_runtime
    from sacmil.extraction import extract_slide as extract_slide
    from sacmil.extraction.extract import extract as extract
    from sacmil.formats import list_formats as list_formats
    from sacmil.formats import read_bag as read_bag
    from sacmil.formats import write_bag as write_bag
    from sacmil.models import MILModel as MILModel
    from sacmil.models import Output as Output
    from sacmil.models import Recipe as Recipe
    from sacmil.models import create_model as create_model
    from sacmil.models import describe_model as describe_model
    from sacmil.models import embed as embed
    from sacmil.models import list_models as list_models
    from sacmil.models import load_model as load_model
    from sacmil.models import load_reference as load_reference
    from sacmil.models import predict as predict
    from sacmil.models import register_model as register_model
    from sacmil.models import save_model as save_model
    from sacmil.results import Prediction as Prediction
    from sacmil.results.run import Run as Run
    from sacmil.tasks import Task as Task
    from sacmil.training.train import cross_validate as cross_validate
    from sacmil.training.train import train as train
    from sacmil.workflows.calibrate import calibrate as calibrate
    from sacmil.workflows.compare import Comparison as Comparison
    from sacmil.workflows.compare import compare as compare
    from sacmil.workflows.convert import convert as convert
    from sacmil.workflows.convert import convert_model as convert_model
    from sacmil.workflows.convert_cells import convert_cells as convert_cells
    from sacmil.workflows.embed import embed_bags as embed_bags
    from sacmil.workflows.evaluate import Evaluation as Evaluation
    from sacmil.workflows.evaluate import evaluate as evaluate
    from sacmil.workflows.heatmaps import draw_heatmaps as draw_heatmaps
    from sacmil.workflows.predict import predict_slides as predict_slides

_NAMES_OF_MODULE = {
    "bag": "Bag EncoderId",
    "cohorts.cohort": "Cohort read_cohort",
    "cohorts.dataset": "Dataset",
    "cohorts.split_cohort": "split_cohort",
    "cohorts.splits": "make_folds",
    "deploy.export": "export_model",
    "deploy.runtime": "load_runtime",
    "extraction": "extract_slide",
    "extraction.extract": "extract",
    "formats": "list_formats read_bag write_bag",
    "models": "MILModel Output Recipe create_model describe_model embed list_models load_model "
    "load_reference predict register_model save_model",
    "results": "Prediction",
    "results.run": "Run",
    "tasks": "Task",
    "training.train": "cross_validate train",
    "workflows.calibrate": "calibrate",
    "workflows.compare": "Comparison compare",
    "workflows.convert": "convert convert_model",
    "workflows.convert_cells": "convert_cells",
    "workflows.embed": "embed_bags",
    "workflows.evaluate": "Evaluation evaluate",
    "workflows.heatmaps": "draw_heatmaps",
    "workflows.predict": "predict_slides",
}

__all__ = sorted(["__version__", *" ".join(_NAMES_OF_MODULE.values()).split()])


def __getattr__(name: str) -> Any:
    module = next((m for m, names in _NAMES_OF_MODULE.items() if name in names.split()), None)
    if module is None and find_spec(f"sacmil.{name}") is None:
        raise AttributeError(f"module 'sacmil' has no attribute {name!r}")
    try:
        if module is None:
            return import_module(f"sacmil.{name}")
        return getattr(import_module(f"sacmil.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from sacmil.errors import MissingExtraError

        raise MissingExtraError("torch", f"sacmil.{name}") from error


def __dir__() -> list[str]:
    return __all__
