"""SAC-MIL and other models: whole-slide classification by multiple instance learning.

Names are loaded on first use, so importing the package imports neither torch nor h5py.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sacmil._version import __version__

if TYPE_CHECKING:
    from sacmil.bag import Bag, EncoderId
    from sacmil.cohorts.cohort import Cohort, read_cohort
    from sacmil.cohorts.dataset import Dataset
    from sacmil.cohorts.split_cohort import split_cohort
    from sacmil.cohorts.splits import make_folds
    from sacmil.deploy.export import export_model
    from sacmil.deploy.runtime import load_runtime
    from sacmil.extraction import extract_slide
    from sacmil.extraction.extract import extract
    from sacmil.formats import list_formats, read_bag, write_bag
    from sacmil.models import (
        MILModel,
        Output,
        Recipe,
        create_model,
        describe_model,
        embed,
        list_models,
        load_model,
        load_reference,
        predict,
        register_model,
        save_model,
    )
    from sacmil.results import Prediction
    from sacmil.results.run import Run
    from sacmil.training.train import cross_validate, train
    from sacmil.workflows.compare import Comparison, compare
    from sacmil.workflows.convert import convert
    from sacmil.workflows.convert_model import convert_model
    from sacmil.workflows.embed import embed_bags
    from sacmil.workflows.evaluate import Evaluation, evaluate
    from sacmil.workflows.heatmaps import draw_heatmaps
    from sacmil.workflows.predict import predict_slides

__all__ = [
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
    "__version__",
    "compare",
    "convert",
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
    "training.train": "cross_validate train",
    "workflows.compare": "Comparison compare",
    "workflows.convert": "convert",
    "workflows.convert_model": "convert_model",
    "workflows.embed": "embed_bags",
    "workflows.evaluate": "Evaluation evaluate",
    "workflows.heatmaps": "draw_heatmaps",
    "workflows.predict": "predict_slides",
}


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
