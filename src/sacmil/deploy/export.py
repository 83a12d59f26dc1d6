"""Exports a model to ONNX with a card, after a comparison of onnxruntime with torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sacmil.arguments import to_output_folder
from sacmil.atomic import atomic_directory
from sacmil.card import CARD_FILE, ONNX_FILE, find_model_folders, is_exported_run, read_card
from sacmil.deploy.runtime import SCHEMA_VERSION, Runtime
from sacmil.errors import MissingExtraError, ModelError, ModelFolderError, OptionError, RunError
from sacmil.evaluation.summary import summarize
from sacmil.models import load_model
from sacmil.models._base import MILModel
from sacmil.results import PREDICTIONS_FILE, Run, read_predictions

MAX_DIFFERENCE = 1e-4
"""Largest difference allowed: of a probability, and of a score relative to the largest score."""
LARGE_BAG_SIZES = (5000, 20001)
"""Bags that every export is tested on, besides those about the size of a region."""
DEFAULT_REGION_SIZE = 64
"""Size of a region for models without regions."""


class Parity(NamedTuple):
    """The difference between onnxruntime and torch for one bag."""

    instances: int
    difference: float


def export_model(
    source: str | Path | Run, out: str | Path, *, sizes: Sequence[int] | None = None
) -> Path:
    """Write model.onnx and card.json, which sacmil.deploy.runtime runs without torch.

    Of a run with several models each is written, to OUT/member_0, OUT/member_1, …, and their mean
    is the prediction. Nothing is written if one of them differs from torch by more than 1e-4.

    Args:
        source: a model folder, or a run.
        out: a folder; an older export there is replaced.
        sizes: bags on which the engines are compared; None means those that users rely on.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import sacmil
        >>> model = sacmil.create_model("mean_pool", in_dim=4, num_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     sacmil.save_model(f"{folder}/model", model, classes=["normal", "tumor"])
        ...     exported = export_model(f"{folder}/model", f"{folder}/exported", sizes=[5])
        ...     runtime = sacmil.load_runtime(exported)
        >>> runtime.classes
        ('normal', 'tumor')
    """
    folder = to_output_folder(out)
    _check_replaceable(folder)
    sources = find_model_folders(source.folder if isinstance(source, Run) else source)
    for one in sources:
        if (one / ONNX_FILE).is_file():
            raise ModelFolderError(
                f"{one}: is exported already; expected the model folder or run it was exported from"
            )
    if sizes is not None and (not sizes or min(sizes) < 1):
        raise OptionError(f"`sizes` is {list(sizes)}; expected numbers of instances from 1 up")
    with atomic_directory(folder) as partial:
        if len(sources) == 1:
            _export_member(sources[0], partial, sizes)
        else:
            for number, member in enumerate(sources):
                (partial / f"member_{number}").mkdir()
                _export_member(member, partial / f"member_{number}", sizes)
    return folder


def read_parity(folder: str | Path) -> list[Parity]:
    """Read the differences between the engines from an export's card."""
    facts = read_card(folder).export or {}
    return [Parity(row["instances"], row["difference"]) for row in facts.get("parity", ())]


def explain_not_exportable(model: MILModel) -> str:
    """Return a sentence why a model cannot be exported; empty if no reason is known."""
    if model.not_exportable:
        return f"{model.name} cannot be exported: {model.not_exportable}"
    if type(model).plan is not MILModel.plan:
        return (
            f"{model.name} cannot be exported: it overrides plan(), which the runtime cannot "
            "call; move the code to sacmil/plans/planners.py and name it as the model's planner"
        )
    return ""


def _check_replaceable(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / ONNX_FILE).is_file() and not is_exported_run(folder):
        raise ModelFolderError(
            f"{folder}: exists and is not an exported model (it has no {ONNX_FILE}); choose "
            "another `out`"
        )


def _export_member(source: Path, folder: Path, sizes: Sequence[int] | None) -> None:
    model = load_model(source).float().requires_grad_(requires_grad=False)
    reason = explain_not_exportable(model)
    if reason:
        raise ModelError(reason)
    try:
        from sacmil.deploy.graph import list_outputs, write_graph
    except ImportError as error:
        raise MissingExtraError("encoders", f"exporting {model.name}") from error
    inputs = write_graph(model, folder / ONNX_FILE)
    facts = {
        "schema_version": SCHEMA_VERSION,
        "torch_version": str(torch.__version__),
        "onnx_sha256": hashlib.sha256((folder / ONNX_FILE).read_bytes()).hexdigest(),
        "dim": model.in_dim,
        "planner": {"name": model.planner.name, "options": dict(model.planner.options)},
        "inputs": inputs,
        "outputs": list_outputs(model),
    }
    _write_card(folder, source, facts)  # the runtime that is compared needs a card
    sizes = _choose_parity_sizes(model) if sizes is None else sizes
    parity = _check_parity(model, Runtime(folder), sizes)
    _write_card(folder, source, facts | {"parity": [row._asdict() for row in parity]})


def _write_card(folder: Path, source: Path, facts: Mapping[str, Any]) -> None:
    card = read_card(source)
    notes = {**card.notes, "bags": _add_mpp(card.bags), **_measure_test_metrics(source)}
    exported = card.model_copy(update={"notes": notes, "export": facts})
    (folder / CARD_FILE).write_text(exported.to_json(), encoding="utf-8")


def _add_mpp(bags: Mapping[str, Any]) -> dict[str, Any]:
    side, pixels = bags.get("patch_um"), bags.get("tile_px")
    return {**bags, "mpp": side / pixels if side and pixels else None}


def _measure_test_metrics(source: Path) -> dict[str, Any]:
    """Return the metrics of the predictions of the test set, if there are any."""
    try:
        predictions = read_predictions(source / PREDICTIONS_FILE)
    except RunError:
        return {}
    tested = predictions.select(predictions.split == "test")
    if not len(tested):
        return {}
    estimates = next(iter(summarize(tested, draws=1).values()))
    values = {name: estimate.mean for name, estimate in estimates.items()}
    known = {name: None if math.isnan(value) else value for name, value in values.items()}
    return {"metrics": {"slides": len(tested), **known}}


# --- parity --------------------------------------------------------------------------------------


def _choose_parity_sizes(model: MILModel) -> list[int]:
    k = model.planner.options.get("k", DEFAULT_REGION_SIZE)
    return sorted({1, 2, max(1, k - 1), k, k + 1, *LARGE_BAG_SIZES})


def _check_parity(model: MILModel, runtime: Runtime, sizes: Sequence[int]) -> list[Parity]:
    from sacmil.deploy.graph import measure_difference

    found = [Parity(n, measure_difference(model, runtime, n)) for n in sizes]
    worst = max(found, key=lambda row: row.difference)
    if not worst.difference <= MAX_DIFFERENCE:
        raise ModelError(
            f"{model.name}: for {worst.instances:,} instances the exported graph differs from "
            f"torch by {worst.difference:.1e}, more than {MAX_DIFFERENCE:.0e}; nothing was written"
        )
    return found
