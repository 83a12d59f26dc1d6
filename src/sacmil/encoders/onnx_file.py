"""onnx:FILE: an encoder exported to ONNX, described by the card beside it.

onnxruntime encodes tiles without torch; the normalisation is part of the graph.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil._version import __version__
from sacmil.atomic import atomic_directory
from sacmil.encoders._base import Encoder, EncoderCard, EncoderRequest, check_tiles
from sacmil.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn

PREFIX = "onnx:"
SUMMARY = "onnx:FILE, a file, or a folder that sacmil export wrote for an encoder"
GRAPH_FILE = "encoder.onnx"
SCHEMA_VERSION = 1
PARITY_TOLERANCE = 1e-4
"""Largest difference allowed between the two engines, as a share of the largest feature."""
_MAX_ONE_FILE_BYTES = 1_800_000_000  # an ONNX file cannot hold 2 GiB: larger weights go beside it


class OnnxEncoder(Encoder):
    """An onnxruntime session: uint8 (B, P, P, 3) in, float32 (B, width) out."""

    engine = "onnxruntime"
    precision = "float32"

    def __init__(
        self, graph: Path, card: EncoderCard, *, weights_hash: str, device: str = "cpu"
    ) -> None:
        self.card = card
        self.hash = weights_hash
        self.device = device
        self._session = open_session(graph, device=device)
        _check_shapes(graph, self._session, card)
        self._input = self._session.get_inputs()[0].name

    def encode(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Encode RGB tiles (B, input_px, input_px, 3) as features (B, width)."""
        tiles = check_tiles(tiles, self.card)
        if not len(tiles):
            return np.empty((0, self.card.width), np.float32)
        features = np.asarray(self._session.run(None, {self._input: tiles})[0], np.float32)
        if not np.isfinite(features).all():
            raise EncoderError(
                f"the encoder {self.card.name} gives NaN or infinity; expected finite features: "
                "check its weights and that the normalisation is inside the graph, or export it "
                "again"
            )
        return features


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file from tiles, uint8 (B, P, P, 3), to features (B, width)."""

    file: Path

    @cached_property
    def _card_and_hash(self) -> tuple[EncoderCard, str]:
        if card_path(self.file).exists():
            return read_graph_card(self.file)
        return _make_card_from_shapes(self.file), hash_graph(self.file)

    @property
    def card(self) -> EncoderCard:
        """The card beside the file, or one made from the file's shapes."""
        return self._card_and_hash[0]

    def find_weights(self) -> Path:
        """Return the file itself."""
        return self.file

    def load(self, request: EncoderRequest) -> Encoder:
        """Load the encoder."""
        _check_request(self.file, request)
        card, digest = self._card_and_hash
        encoder = OnnxEncoder(self.file, card, weights_hash=digest, device=request.device)
        if not card_path(self.file).exists():
            with self.file.open("rb") as stream:
                encoder.file_sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return encoder


def find(name: str) -> OnnxFile:
    """Return the encoder in a file, or in a folder that export_encoder wrote."""
    path = Path(name)
    file = path / GRAPH_FILE if path.is_dir() else path
    if not file.is_file():
        raise EncoderError(
            f"{file}: there is no such file; expected an ONNX file, such as "
            "sacmil export writes for an encoder"
        )
    return OnnxFile(file)


def _check_request(file: Path, request: EncoderRequest) -> None:
    unsupported = {
        "engine torch": request.engine == "torch",
        f"precision {request.precision}": request.precision not in (None, "float32"),
        "other weights": request.weights is not None,
        "random weights": request.random_weights,
    }
    for option, is_requested in unsupported.items():
        if is_requested:
            raise EncoderError(
                f"{file}: {option} cannot be used with an ONNX file, which onnxruntime runs in "
                "float32 with its own weights; leave it out"
            )


def _read_shapes(session: Any) -> tuple[str, list[Any], list[Any]]:
    tiles, features = session.get_inputs()[0], session.get_outputs()[0]
    return tiles.type, list(tiles.shape), list(features.shape)


def _make_card_from_shapes(file: Path) -> EncoderCard:
    kind, tiles, features = _read_shapes(open_session(file))
    side = tiles[1] if len(tiles) == 4 else None
    width = features[1] if len(features) == 2 else None
    is_met = {
        "an input of uint8 (B, P, P, 3)": kind == "tensor(uint8)" and tiles[3:] == [3],
        "its side P as a number": isinstance(side, int) and tiles[2:3] == [side],
        "an output (B, width) with the width as a number": isinstance(width, int),
    }
    if side is None or width is None or not all(is_met.values()):
        missing = ", ".join(requirement for requirement, met in is_met.items() if not met)
        raise EncoderError(
            f"{file}: takes {kind} {tiles}, returns {features}, and has no card "
            f"{card_path(file).name} beside it; missing: {missing}; export it with "
            "the normalisation inside, as sacmil export does"
        )
    return EncoderCard(
        name=f"onnx:{file.name}",
        width=width,
        input_px=side,
        resample="bilinear",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        pooling="inside the graph",
        license="unknown",
        weights="the file itself",
    )


def _check_shapes(file: Path, session: Any, card: EncoderCard) -> None:
    kind, tiles, features = _read_shapes(session)
    expected = [card.input_px, card.input_px, 3]
    if kind != "tensor(uint8)" or tiles[1:] != expected or features[1:] != [card.width]:
        raise EncoderError(
            f"{file}: takes {kind} {tiles} and returns {features}; its card states uint8 "
            f"(B, {card.input_px}, {card.input_px}, 3) and (B, {card.width}): copy both again"
        )


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
    stored = {"gated": False, "verified": "no", **stored}  # earlier versions did not write these
    if set(stored) != names:
        raise ValueError(f"fields {sorted(set(stored) ^ names)} are missing or unknown")
    for name in ("mean", "std"):
        stored[name] = tuple(float(value) for value in stored[name])
    for name, kind in (("width", int), ("input_px", int), ("mpp", (int, float)), ("name", str)):
        if not isinstance(stored[name], kind):
            raise ValueError(f"{name} is {stored[name]!r}")
    return EncoderCard(**stored)


def open_session(file: Path, *, device: str = "cpu") -> Any:
    """Open an ONNX file; the session may be called from several threads at once."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("runtime", "encoding with onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so they need not be printed too
    # The caller runs one call per core: more threads would compete for the same cores, and a
    # thread that spins while it waits takes its core from the decoder.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    for kind in ("intra", "inter"):
        options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
    provider = _choose_provider(device, onnxruntime.get_available_providers())
    try:
        return onnxruntime.InferenceSession(file, options, providers=[provider])
    except Exception as error:  # onnxruntime has a class per status code and no common root
        reason = str(error).strip().splitlines()[0]
        raise EncoderError(
            f"{file}: onnxruntime cannot load it ({reason}); expected a complete ONNX file, copy "
            "or export it again"
        ) from error


def _choose_provider(device: str, available: list[str]) -> Any:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return "CPUExecutionProvider"
    if kind == "cuda" and "CUDAExecutionProvider" in available:
        return ("CUDAExecutionProvider", {"device_id": int(index or 0)})
    raise EncoderError(
        f"onnxruntime cannot use the device {device!r} here (it has {', '.join(available)}); "
        "use engine torch, or device cpu"
    )


# Export ----------------------------------------------------------------------------------------


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
