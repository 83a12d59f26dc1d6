"""Exports a model to ONNX with a card, after a comparison of onnxruntime with torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sacmil.arguments import to_output_folder
from sacmil.atomic import atomic_directory
from sacmil.card import CARD_FILE, ONNX_FILE, find_model_folders, is_exported_run, read_card
from sacmil.deploy.folding import fold_norms
from sacmil.deploy.runtime import SCHEMA_VERSION, Runtime
from sacmil.deploy.translations import make_translation_table
from sacmil.encoders._export import silence_exporter, strip_metadata
from sacmil.errors import MissingExtraError, ModelError, ModelFolderError, OptionError, RunError
from sacmil.evaluation.summary import summarize
from sacmil.models import load_model
from sacmil.models._base import MILModel
from sacmil.plans import Planner, make_plan
from sacmil.results import PREDICTIONS_FILE, Run, read_predictions

Array = npt.NDArray[Any]

MAX_DIFFERENCE = 1e-4
"""Largest difference allowed: of a probability, and of a score relative to the largest score."""
LARGE_BAG_SIZES = (5000, 20001)
"""Bags that every export is tested on, besides those about the size of a region."""
DEFAULT_REGION_SIZE = 64
"""Size of a region for models without regions."""
TRACED_BAG_SIZES = (150, 260)
"""Bags that the graph is traced with; axes of their plans that differ are dynamic."""


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
    names = _write_graph(fold_norms(model), folder / ONNX_FILE)
    facts = {
        "schema_version": SCHEMA_VERSION,
        "torch_version": str(torch.__version__),
        "onnx_sha256": hashlib.sha256((folder / ONNX_FILE).read_bytes()).hexdigest(),
        "dim": model.in_dim,
        "planner": {"name": model.planner.name, "options": dict(model.planner.options)},
        "inputs": names,
        "outputs": _list_outputs(model),
    }
    _write_card(folder, source, facts)  # the runtime that is compared needs a card
    sizes = _choose_parity_sizes(model) if sizes is None else sizes
    parity = _check_parity(model, Runtime(folder), sizes)
    _write_card(folder, source, facts | {"parity": [row._asdict() for row in parity]})


def _write_card(folder: Path, source: Path, facts: Mapping[str, Any]) -> None:
    card = read_card(source)
    notes = {**card.notes, "bags": _add_mpp(card.bags), **_measure_test_metrics(source)}
    exported = replace(card, notes=notes, export=facts)
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


# --- the graph -----------------------------------------------------------------------------------


class _ExportWrapper(nn.Module):
    def __init__(self, model: MILModel, keys: Sequence[str]) -> None:
        super().__init__()
        self.model, self.keys = model, keys

    def forward(self, features: Tensor, coords: Tensor, *plan: Tensor) -> tuple[Tensor, ...]:
        output = self.model.aggregate(features, coords, dict(zip(self.keys, plan, strict=True)))
        outputs = (self.model.probabilities(output), output.scores, output.class_scores)
        return tuple(tensor for tensor in outputs if tensor is not None)


def _write_graph(model: MILModel, file: Path) -> list[str]:
    """Write the graph and return the names of its inputs."""
    inputs, _ = bags = [_make_bag(n, model.in_dim) for n in TRACED_BAG_SIZES]
    plan, other = (
        _make_traced_plan(model.planner, *pair)
        for pair in zip(bags, model.planner.trace_options, strict=True)
    )
    axes: list[Any] = [{0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}]
    if plan:
        axes.append(tuple(_find_dynamic_axes(plan[key], other[key]) for key in plan))
    names = ["features", "coords", *plan]
    try:
        with silence_exporter(), torch.no_grad():
            program = torch.onnx.export(
                _ExportWrapper(model, list(plan)),
                tuple(torch.from_numpy(array) for array in (*inputs, *plan.values())),
                dynamo=True,
                custom_translation_table=make_translation_table(),
                optimize=False,  # it removes + 1e-8 as + 0; onnxruntime optimises by itself
                verbose=False,
                input_names=names,
                output_names=_list_outputs(model),
                dynamic_shapes=tuple(axes),
            )
    except ImportError as error:
        raise MissingExtraError("encoders", f"exporting {model.name}") from error
    except torch.onnx.errors.OnnxExporterError as error:
        if "installed" in str(error):
            raise MissingExtraError("encoders", f"exporting {model.name}") from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ModelError(
            f"{model.name} cannot be exported with these options: torch cannot trace it for bags "
            f"of any size ({reason})"
        ) from error
    assert program is not None
    # Outside of the try block: a full disk is not an error of the exporter.
    graph = program.model_proto
    strip_metadata(graph)
    file.write_bytes(graph.SerializeToString())
    return names


def _make_traced_plan(
    planner: Planner, bag: tuple[Array, Array], options: Mapping[str, Any]
) -> dict[str, Array]:
    features, coords = bag
    return make_plan(planner.name, {**planner.options, **options}, coords, features)


def _list_outputs(model: MILModel) -> list[str]:
    features, coords = (torch.from_numpy(array) for array in _make_bag(2, model.in_dim))
    by_class = model(features, coords).class_scores is not None
    return ["probabilities", "scores", *(["class_scores"] if by_class else [])]


def _find_dynamic_axes(one: Array, other: Array) -> dict[int, Any]:
    axes = range(one.ndim)
    return {a: torch.export.Dim.DYNAMIC for a in axes if one.shape[a] != other.shape[a]}


# --- parity --------------------------------------------------------------------------------------


def _choose_parity_sizes(model: MILModel) -> list[int]:
    k = model.planner.options.get("k", DEFAULT_REGION_SIZE)
    return sorted({1, 2, max(1, k - 1), k, k + 1, *LARGE_BAG_SIZES})


def _check_parity(model: MILModel, runtime: Runtime, sizes: Sequence[int]) -> list[Parity]:
    found = [Parity(n, _measure_difference(model, runtime, n)) for n in sizes]
    worst = max(found, key=lambda row: row.difference)
    if not worst.difference <= MAX_DIFFERENCE:
        raise ModelError(
            f"{model.name}: for {worst.instances:,} instances the exported graph differs from "
            f"torch by {worst.difference:.1e}, more than {MAX_DIFFERENCE:.0e}; nothing was written"
        )
    return found


@torch.inference_mode()
def _measure_difference(model: MILModel, runtime: Runtime, n: int) -> float:
    features, coords = _make_bag(n, model.in_dim)
    output = model(torch.from_numpy(features), torch.from_numpy(coords))
    expected = {"probabilities": model.probabilities(output), "scores": output.scores}
    if output.class_scores is not None:
        expected["class_scores"] = output.class_scores
    found = runtime.run(features, coords)
    return max(_relative_difference(found[name], expected[name].numpy(), name) for name in expected)


def _relative_difference(found: Array, expected: Array, name: str) -> float:
    if found.shape != expected.shape or not np.isfinite(found).all():
        return math.inf
    largest = 1.0 if name == "probabilities" else float(np.abs(expected).max()) or 1.0
    return float(np.abs(found - expected).max()) / largest


def _make_bag(n: int, dim: int) -> tuple[Array, Array]:
    """Return random features (N, D), and whole coordinates with holes in random order."""
    random = np.random.default_rng(n)
    side = math.isqrt(2 * n) + 1
    cells = random.permutation(side * side)[:n]
    coords = np.stack([cells % side, cells // side], axis=1).astype(np.float64)
    return random.standard_normal((n, dim), dtype=np.float32), coords
