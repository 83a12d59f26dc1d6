"""onnx:FILE: an encoder exported to ONNX, described by the card beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders._export import GRAPH_FILE, card_path, hash_graph, read_graph_card
from sacmil.encoders._network import EncoderRequest
from sacmil.encoders._onnx import OnnxEncoder, open_session
from sacmil.errors import EncoderError

PREFIX = "onnx:"
SUMMARY = "onnx:FILE, a file, or a folder that sacmil export wrote for an encoder"


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
        session = open_session(self.file, device=request.device)
        _check_shapes(self.file, session, card)
        encoder = OnnxEncoder(session, card, weights_hash=digest, device=request.device)
        if not card_path(self.file).exists():
            encoder.file_sha256 = _hash_file(self.file)
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


def _hash_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    missing = [
        requirement
        for requirement, is_met in (
            ("an input of uint8 (B, P, P, 3)", kind == "tensor(uint8)" and tiles[3:] == [3]),
            ("its side P as a number", isinstance(side, int) and tiles[2:3] == [side]),
            ("an output (B, width) with the width as a number", isinstance(width, int)),
        )
        if not is_met
    ]
    if missing or side is None or width is None:
        raise EncoderError(
            f"{file}: takes {kind} {tiles}, returns {features}, and has no card "
            f"{card_path(file).name} beside it; missing: {', '.join(missing)}; export it with "
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
        mpp=0.5,
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
