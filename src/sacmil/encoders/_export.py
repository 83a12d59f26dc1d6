"""Writes an encoder as an ONNX file with a card beside it, and reads both back."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacmil._version import __version__
from sacmil.atomic import atomic_directory
from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders._onnx import OnnxEncoder, open_session
from sacmil.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn

GRAPH_FILE = "encoder.onnx"
SCHEMA_VERSION = 1
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

    module = TileNetwork(network, card).eval().requires_grad_(requires_grad=False)
    with atomic_directory(folder) as partial:
        _write_graph(module, partial / GRAPH_FILE, card)
        encoder = _open_encoder(partial / GRAPH_FILE, card, weights_hash)
        stored = {
            "schema_version": SCHEMA_VERSION,
            "sacmil_version": __version__,
            "torch_version": str(torch.__version__),
            "encoder": asdict(card),
            "weights_hash": weights_hash,
            "onnx_hash": hash_graph(partial / GRAPH_FILE),
            "difference": _check_parity(module, encoder),
        }
        text = json.dumps(stored, indent=1)
        card_path(partial / GRAPH_FILE).write_text(text + "\n", encoding="utf-8")
    return folder


def load_exported(folder: Path, *, device: str = "cpu") -> OnnxEncoder:
    """Load the encoder in a folder that export_encoder wrote."""
    card, digest = read_graph_card(folder / GRAPH_FILE)
    return _open_encoder(folder / GRAPH_FILE, card, digest, device=device)


def card_path(graph: Path) -> Path:
    """Return the path of an ONNX file's card."""
    return graph.with_name(f"{graph.name}.json")


def hash_graph(graph: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of an ONNX file and its external weights."""
    digest = hashlib.sha256()
    for file in (graph, graph.with_name(f"{graph.name}.data")):
        if file.is_file():
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def read_graph_card(graph: Path) -> tuple[EncoderCard, str]:
    """Read the card of an ONNX file: the encoder, and the hash of its weights."""
    file = card_path(graph)
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        version = stored["schema_version"]
        card = _parse_card(stored["encoder"])
        digest, graph_hash = str(stored["weights_hash"]), stored["onnx_hash"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EncoderError(
            f"{file}: is not the card of an encoder ({type(error).__name__}: {error}); "
            f"export {graph.name} again, or remove the card"
        ) from error
    if version != SCHEMA_VERSION:
        raise EncoderError(
            f"{file}: has schema version {version!r}; this sacmil ({__version__}) reads "
            f"{SCHEMA_VERSION}: export the encoder again"
        )
    if graph_hash != hash_graph(graph):
        raise EncoderError(
            f"{graph}: is not the file its card {file.name} describes; copy both again"
        )
    return card, digest


def _parse_card(stored: dict[str, Any]) -> EncoderCard:
    if "licence" in stored and "license" not in stored:  # as earlier versions wrote it
        stored["license"] = stored.pop("licence")
    names = {field.name for field in fields(EncoderCard)}
    if set(stored) != names:
        raise ValueError(f"fields {sorted(set(stored) ^ names)} are missing or unknown")
    for name in ("mean", "std"):
        stored[name] = tuple(float(value) for value in stored[name])
    for name, kind in (("width", int), ("input_px", int), ("mpp", (int, float)), ("name", str)):
        if not isinstance(stored[name], kind):
            raise ValueError(f"{name} is {stored[name]!r}")
    return EncoderCard(**stored)


def _open_encoder(
    graph: Path, card: EncoderCard, digest: str, *, device: str = "cpu"
) -> OnnxEncoder:
    session = open_session(graph, device=device)
    return OnnxEncoder(session, card, weights_hash=digest, device=device)


def _write_graph(module: torch.nn.Module, file: Path, card: EncoderCard) -> None:
    import torch

    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    tiles = torch.zeros(2, card.input_px, card.input_px, 3, dtype=torch.uint8)
    is_small = size < _MAX_ONE_FILE_BYTES
    options = _one_file_options() if is_small else _external_weights_options()
    target: Any = io.BytesIO() if is_small else file
    options |= {"input_names": ["tiles"], "output_names": ["features"]}
    try:
        with silence_exporter():
            torch.onnx.export(module, (tiles,), target, **options)
    except (ImportError, torch.onnx.errors.OnnxExporterError) as error:
        if "onnx" not in str(error) or "installed" not in str(error):
            raise
        raise MissingExtraError("encoders", f"exporting {card.name}") from None
    if is_small:
        file.write_bytes(target.getvalue())  # this exporter stores no stack traces
    else:
        _strip_file(file)


def _one_file_options() -> dict[str, Any]:
    """Return options of torch's older exporter, ten times faster (lite0: 1.2 s instead of 14 s)."""
    return {"dynamo": False, "dynamic_axes": {"tiles": {0: "batch"}, "features": {0: "batch"}}}


def _external_weights_options() -> dict[str, Any]:
    """Return options of torch's newer exporter, which stores all weights in a second file."""
    import torch

    batch = ({0: torch.export.Dim("batch")},)
    return {"dynamo": True, "dynamic_shapes": batch, "external_data": True}


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
