"""From a tile to a vector: one file per encoder; a new encoder is a new file here, nothing else."""

from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders._export import export_encoder
from sacmil.encoders._registry import (
    describe_encoder,
    find_encoder_weights,
    list_encoders,
    list_families,
    load_encoder,
)

__all__ = [
    "Encoder",
    "EncoderCard",
    "describe_encoder",
    "export_encoder",
    "find_encoder_weights",
    "list_encoders",
    "list_families",
    "load_encoder",
]
