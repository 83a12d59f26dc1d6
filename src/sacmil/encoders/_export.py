"""Writes an encoder as an ONNX file with a card beside it; onnx_file.py reads both."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacmil._version import __version__
from sacmil.atomic import atomic_directory
from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders.onnx_file import (
    GRAPH_FILE,
    SCHEMA_VERSION,
    OnnxEncoder,
    card_path,
    hash_graph,
)
from sacmil.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn

PARITY_TOLERANCE = 1e-4
"""Largest difference allowed between the two engines, as a share of the largest feature."""
_MAX_ONE_FILE_BYTES = 1_800_000_000  # an ONNX file cannot hold 2 GiB: larger weights go beside it


def check_replaceable(folder: Path) -> None:
    """Raise EncoderError if a folder holds something else than an exported encoder."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / GRAPH_FILE).is_file():
        raise EncoderError(
            f"{folder}: exists and is not an exported encoder (it has no {GRAPH_FILE}); "
            "choose another folder"
        )


def export_network(network: nn.Module, card: EncoderCard, weights_hash: str, folder: Path) -> Path:
    """Write a network's graph and card into a folder, completely or not at all."""
    import torch

    from sacmil.encoders._torch import TileNetwork

    module = TileNetwork(network, card)
    with atomic_directory(folder) as partial:
        graph = partial / GRAPH_FILE
        _write_graph(module, graph, card)
        encoder = OnnxEncoder(graph, card, weights_hash=weights_hash)
        stored = {
            "schema_version": SCHEMA_VERSION,
            "sacmil_version": __version__,
            "torch_version": str(torch.__version__),
            "encoder": asdict(card),
            "weights_hash": weights_hash,
            "onnx_hash": hash_graph(graph),
            "difference": _check_parity(module, encoder),
        }
        card_path(graph).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return folder


def _write_graph(module: torch.nn.Module, file: Path, card: EncoderCard) -> None:
    import torch

    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    tiles = torch.zeros(2, card.input_px, card.input_px, 3, dtype=torch.uint8)
    target: Any = file
    options: dict[str, Any] = {"input_names": ["tiles"], "output_names": ["features"]}
    if size < _MAX_ONE_FILE_BYTES:  # the older exporter is faster: lite0 1.2 s instead of 14 s
        target = io.BytesIO()
        axes = {"tiles": {0: "batch"}, "features": {0: "batch"}}
        options |= {"dynamo": False, "dynamic_axes": axes}
    else:  # the newer one stores all weights in a second file
        batch = ({0: torch.export.Dim("batch")},)
        options |= {"dynamo": True, "dynamic_shapes": batch, "external_data": True}
    try:
        with silence_exporter():
            torch.onnx.export(module, (tiles,), target, **options)
    except (ImportError, torch.onnx.errors.OnnxExporterError) as error:
        if "onnx" not in str(error) or "installed" not in str(error):
            raise
        raise MissingExtraError("encoders", f"exporting {card.name}") from None
    if target is file:
        _strip_file(file)
    else:
        file.write_bytes(target.getvalue())  # the older exporter stores no stack traces


def _strip_file(file: Path) -> None:
    import onnx

    graph = onnx.load(file, load_external_data=False)
    strip_metadata(graph)
    file.write_bytes(graph.SerializeToString())


def strip_metadata(message: Any) -> None:
    """Remove doc strings and metadata from an ONNX graph, or from a part of one.

    Torch stores stack traces there, with paths of this machine's source files.
    """
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                strip_metadata(inner)


@contextmanager
def silence_exporter() -> Iterator[None]:
    """Hide the exporter's log and its warnings about its own dependencies."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _check_parity(module: torch.nn.Module, encoder: Encoder) -> float:
    import torch

    side = encoder.card.input_px
    tiles = np.random.default_rng(0).integers(0, 256, (3, side, side, 3), np.uint8)
    tiles[1] = 255 - tiles[1] // 8  # pale, as at the edge of tissue
    with torch.inference_mode():
        expected = module(torch.from_numpy(tiles)).numpy()
    found = np.concatenate([encoder.encode(tiles[:1]), encoder.encode(tiles[1:])])
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not difference < PARITY_TOLERANCE:
        raise EncoderError(
            f"{encoder.card.name}: the exported graph differs from torch by {difference:.1e} of "
            f"the largest feature; expected at most {PARITY_TOLERANCE:.0e}; nothing was written, "
            "use engine torch"
        )
    return difference
