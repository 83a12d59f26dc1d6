"""Encodes tiles with onnxruntime, without torch; the normalisation is part of the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders._tiles import check_tiles
from sacmil.errors import EncoderError, MissingExtraError


class OnnxEncoder(Encoder):
    """An onnxruntime session: uint8 (B, P, P, 3) in, float32 (B, width) out."""

    engine = "onnxruntime"
    precision = "float32"

    def __init__(
        self, session: Any, card: EncoderCard, *, weights_hash: str, device: str = "cpu"
    ) -> None:
        self.card = card
        self.hash = weights_hash
        self.device = device
        self._session = session
        self._input = session.get_inputs()[0].name
        self._output = session.get_outputs()[0].name

    def encode(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Encode RGB tiles (B, input_px, input_px, 3) as features (B, width)."""
        tiles = check_tiles(tiles, self.card)
        if not len(tiles):
            return np.empty((0, self.card.width), np.float32)
        features = np.asarray(
            self._session.run([self._output], {self._input: tiles})[0], np.float32
        )
        if not np.isfinite(features).all():
            raise EncoderError(
                f"the encoder {self.card.name} gives NaN or infinity; expected finite features: "
                "check its weights and that the normalisation is inside the graph, or export it "
                "again"
            )
        return features


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
