"""From a tile to a vector: one file per encoder; a new encoder is a new file here, nothing else."""

from sacmil.encoders._base import EncoderCard, TileEncoder
from sacmil.encoders._export import export_encoder
from sacmil.encoders._registry import (
    encoder_card,
    encoder_weights,
    list_encoders,
    list_families,
    load_encoder,
)

__all__ = [
    "EncoderCard",
    "TileEncoder",
    "encoder_card",
    "encoder_weights",
    "export_encoder",
    "list_encoders",
    "list_families",
    "load_encoder",
]
