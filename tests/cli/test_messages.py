"""Texts of the library name Python arguments; commands print their own options instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from sacmil.cli._messages import name_options, set_running_command
from sacmil.cli.convert import command as convert
from sacmil.cli.predict import command as predict
from sacmil.errors import RunError


@pytest.fixture(autouse=True)
def _no_running_command() -> Iterator[None]:
    yield
    set_running_command(None)


@pytest.mark.parametrize(
    ("command", "text", "printed"),
    [
        (convert, "give `patch_size` and `coords`", "give --patch-size and --coords"),
        (convert, "choose `layout='clam'`", "choose --from clam"),
        (convert, "`stride=12.5`, `overwrite=True`", "--stride 12.5, --overwrite"),
        (predict, "use `heatmaps=False`", "use --no-heatmaps"),
        (predict, "give `items`", "give ITEMS"),
        (predict, "give `coords`", "give sacmil convert --coords"),
        (predict, "a smaller `min_tissue`", "a smaller sacmil extract --min-tissue"),
        (
            predict,
            "use `mpp=0.5`, or `allow_upsampling=True`",
            "use sacmil extract --mpp 0.5, or sacmil extract --allow-upsampling",
        ),
        (None, "give `mpp=0.5`", "give sacmil convert --mpp 0.5"),
        (
            predict,
            "make splits by `validation=0.3`",
            "make splits by sacmil split --validation 0.3",
        ),
        (predict, "give `folds=3`", "give folds=3"),
        (predict, "give `nothing_known` or `z=1`", "give nothing_known or z=1"),
        (predict, "run `ray start --head`; see ``out``", "run `ray start --head`; see ``out``"),
    ],
)
def test_an_argument_is_printed_as_the_option_that_sets_it(
    command: click.Command | None, text: str, printed: str
) -> None:
    set_running_command(command)
    assert name_options(text) == printed


def test_an_error_of_the_library_names_the_option_of_the_command(
    sacmil: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RunError("the folder is in use; choose another `out`, or give `allow_mismatch`")

    monkeypatch.setattr("sacmil.workflows.embed.embed_bags", fail)
    done = sacmil("embed", tmp_path, tmp_path, "--out", tmp_path / "e.csv")
    assert done.code == 1
    assert done.err == (
        "Error: the folder is in use; choose another --out, or give --allow-mismatch\n"
    )
