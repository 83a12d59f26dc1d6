"""The zoo: a file per method; to add a model, add a file."""

from sacmil.models import _acceleration as _acceleration
from sacmil.models._base import MILModel, Output, Reference, Sample
from sacmil.models._folder import load_model, save_model
from sacmil.models._predict import embed, predict
from sacmil.models._recipe import Recipe
from sacmil.models._reference import load_reference
from sacmil.models._registry import create_model, describe_model, list_models, register_model

__all__ = [
    "MILModel",
    "Output",
    "Recipe",
    "Reference",
    "Sample",
    "create_model",
    "describe_model",
    "embed",
    "list_models",
    "load_model",
    "load_reference",
    "predict",
    "register_model",
    "save_model",
]
