"""``sacmil export``: an encoder as ONNX, to run without torch."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--encoder", required=True, help="Name of an encoder: sacmil encoders.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for encoder.onnx and its card.",
)
@click.option(
    "--weights",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the encoder's weights.",
)
@click.option("--download", is_flag=True, help="Let the encoder fetch its weights from the hub.")
def command(encoder: str, out: Path, weights: Path | None, *, download: bool) -> None:
    """Write an encoder as ONNX with a JSON card; --encoder onnx:OUT then names it."""
    from sacmil.encoders import export_encoder

    export_encoder(encoder, out, weights=weights, download=download)
    click.echo(f"{out}: use it with --encoder onnx:{out}")
