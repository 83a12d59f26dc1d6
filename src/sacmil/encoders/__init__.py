"""Encoders from tiles to feature vectors; a new encoder only needs a new file here."""

from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders._registry import (
    describe_encoder,
    export_encoder,
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
