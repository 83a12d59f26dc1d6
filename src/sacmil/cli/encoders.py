"""``sacmil encoders``: the names --encoder accepts, and where the weights are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sacmil.errors import EncoderError

if TYPE_CHECKING:
    from sacmil.encoders import EncoderCard


_VERIFIED = {
    "weights": "weights: features of the published file are those of another program",
    "architecture": "architecture: as published; the weights themselves were never tried",
    "names": "names: names and shapes of parameters were compared",
    "no": "no",
}


@click.command()
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the encoders, or show the card of the encoder NAME."""
    from sacmil.encoders import describe_encoder, list_encoders, list_families

    if name is not None:
        _print_card(describe_encoder(name))
        return
    heads = f"{'WEIGHTS':<9}{'ACCESS':<8}{'VERIFIED':<14}LICENSE"
    click.echo(f"{'NAME':<14}{'WIDTH':>5}{'INPUT':>7}{'MPP':>6}  {heads}")
    for name in list_encoders():
        card = describe_encoder(name)
        here = "missing" if isinstance(_find_weights(name), EncoderError) else "here"
        numbers = f"{card.width:>5}{card.input_px:>7}{card.mpp:>6g}"
        access = "gated" if card.gated else "open"
        click.echo(f"{name:<14}{numbers}  {here:<9}{access:<8}{card.verified:<14}{card.license}")
    for summary in list_families().values():
        click.echo(f"also {summary}")


def _print_card(card: EncoderCard) -> None:
    rows = {
        "encoder": card.name,
        "width": card.width,
        "input": f"{card.input_px} x {card.input_px} pixels, {card.resample}",
        "mpp": f"{card.mpp:g} µm per pixel",
        "pooling": card.pooling,
        "mean": ", ".join(f"{value:.6g}" for value in card.mean),
        "std": ", ".join(f"{value:.6g}" for value in card.std),
        "license": card.license,
        "access": "gated: an account, and accepted terms" if card.gated else "open",
        "verified": _VERIFIED[card.verified],
        "weights": card.weights,
        "file": _find_weights(card.name),
    }
    for label, value in rows.items():
        click.echo(f"{label:<15}{value}")


def _find_weights(name: str) -> Path | EncoderError:
    """Return the path of the weights, or the error that says how to get them."""
    from sacmil.encoders import find_encoder_weights

    try:
        return find_encoder_weights(name)
    except EncoderError as error:
        return error
