"""``sacmil export``: a model or an encoder as ONNX, to run without torch."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--encoder", help="Name of an encoder to export instead: sacmil encoders.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the ONNX file and its card.",
)
@click.option(
    "--weights",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the encoder's weights.",
)
@click.option("--download", is_flag=True, help="Let the encoder fetch its weights from the hub.")
def command(
    model: Path | None, encoder: str | None, out: Path, weights: Path | None, *, download: bool
) -> None:
    """Write MODEL, a model folder or a run, as ONNX with a JSON card.

    What was written is compared with torch, and refused if the two differ. With --encoder it is an
    encoder that is written; --encoder onnx:OUT then names it.
    """
    if (model is None) == (encoder is None):
        raise click.UsageError("give either a MODEL folder or --encoder NAME")
    if encoder is None and (weights or download):
        raise click.UsageError("--weights and --download are for --encoder")
    if encoder is not None:
        from sacmil.encoders import export_encoder

        export_encoder(encoder, out, weights=weights, download=download)
        click.echo(f"{out}: use it with --encoder onnx:{out}")
    elif model is not None:
        _export_model(model, out)


def _export_model(model: Path, out: Path) -> None:
    try:
        from sacmil.deploy.export import export_model, read_parity
    except ImportError:
        from sacmil.errors import MissingExtraError

        raise MissingExtraError("torch", "exporting a model") from None
    from sacmil.card import CARD_FILE

    export_model(model, out)
    for card in sorted(out.glob(CARD_FILE)) or sorted(out.glob(f"part_*/{CARD_FILE}")):
        click.echo(f"{card.parent}: largest difference from torch")
        for instances, difference in read_parity(card.parent):
            click.echo(f"  {instances:>7,} instances  {difference:.1e}")
    click.echo(f"{out}: use it with sacmil predict --model {out}")
