"""``sacmil export``: write a model or an encoder as ONNX, to run without torch."""

from __future__ import annotations

from pathlib import Path

import click

from sacmil.cli import _options as opt


@click.command()
@click.argument("model", required=False, type=opt.PATH)
@opt.option("--encoder", "Encoder to export instead; see sacmil encoders.")
@opt.option("--out", "Folder for the ONNX file and its card.", opt.FOLDER, required=True)
@opt.weights_option
@opt.download_option
def command(
    model: Path | None, encoder: str | None, out: Path, weights: Path | None, *, download: bool
) -> None:
    """Write MODEL, a model folder or a run, as ONNX with a JSON card.

    The ONNX file is compared with torch and rejected if the two differ. With --encoder, an encoder
    is written, to be used as --encoder onnx:OUT.
    """
    if (model is None) == (encoder is None):
        raise click.UsageError("expected either a MODEL folder or --encoder NAME")
    if encoder is None and (weights or download):
        raise click.UsageError("--weights and --download need --encoder")
    if model is not None:
        _export_model(model, out)
    elif encoder is not None:
        from sacmil.encoders import export_encoder

        export_encoder(encoder, out, weights=weights, download=download)
        click.echo(f"{out}: use it with --encoder onnx:{out}")


def _export_model(model: Path, out: Path) -> None:
    from sacmil import export_model  # says how to get torch if it is missing
    from sacmil.card import find_model_folders
    from sacmil.deploy.export import read_parity

    export_model(model, out)
    for folder in find_model_folders(out):
        click.echo(f"{folder}: largest difference from torch")
        for instances, difference in read_parity(folder):
            click.echo(f"  {instances:>7,} instances  {difference:.1e}")
    click.echo(f"{out}: use it with sacmil predict --model {out}")
