"""SAC-MIL and other models: whole-slide classification by multiple instance learning.

Names are loaded on first use, so importing the package imports neither torch nor h5py.
"""

from importlib import import_module
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

_MODULE_OF_NAME = {
    "Bag": "bag",
    "Cohort": "cohorts.cohort",
    "Comparison": "workflows.compare",
    "Dataset": "cohorts.dataset",
    "EncoderId": "bag",
    "Evaluation": "workflows.evaluate",
    "MILModel": "models",
    "Output": "models",
    "Prediction": "results",
    "Recipe": "models",
    "Run": "results.run",
    "compare": "workflows.compare",
    "convert": "workflows.convert",
    "convert_model": "workflows.convert_model",
    "create_model": "models",
    "cross_validate": "training.train",
    "describe_model": "models",
    "draw_heatmaps": "workflows.heatmaps",
    "embed": "models",
    "embed_bags": "workflows.embed",
    "evaluate": "workflows.evaluate",
    "export_model": "deploy.export",
    "extract": "extraction.extract",
    "extract_slide": "extraction",
    "list_formats": "formats",
    "list_models": "models",
    "load_model": "models",
    "load_reference": "models",
    "load_runtime": "deploy.runtime",
    "make_folds": "cohorts.splits",
    "predict": "models",
    "predict_slides": "workflows.predict",
    "read_bag": "formats",
    "read_cohort": "cohorts.cohort",
    "register_model": "models",
    "save_model": "models",
    "split_cohort": "cohorts.split_cohort",
    "train": "training.train",
    "write_bag": "formats",
}

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


_SUBMODULES = frozenset(
    {
        "arguments",
        "atomic",
        "bag",
        "card",
        "cohorts",
        "deploy",
        "encoders",
        "environment",
        "errors",
        "evaluation",
        "extraction",
        "formats",
        "heatmap",
        "kernels",
        "limits",
        "models",
        "nn",
        "parallel",
        "plans",
        "plugins",
        "progress",
        "regions",
        "reproduce",
        "results",
        "slides",
        "synthetic",
        "training",
        "units",
        "viewer",
        "workflows",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME and name not in _SUBMODULES:
        raise AttributeError(f"module 'sacmil' has no attribute {name!r}")
    try:
        if name in _SUBMODULES:
            return import_module(f"sacmil.{name}")
        return getattr(import_module(f"sacmil.{_MODULE_OF_NAME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from sacmil.errors import MissingExtraError

        raise MissingExtraError("torch", f"sacmil.{name}") from error


def __dir__() -> list[str]:
    return __all__
