"""Writes slide embeddings: a row per bag, with the vector that the model's head sees."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.arguments import ProgressCallback, ignore_progress, list_paths, to_path
from sacmil.atomic import atomic_write
from sacmil.card import ONNX_FILE, find_model_folders, read_card
from sacmil.csv_text import escape_cell
from sacmil.errors import InputError, ModelFolderError, OptionError
from sacmil.limits import BAG_LIMIT_S
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.inputs import (
    MODEL_PATH,
    BagReading,
    ModelPath,
    Paths,
    find_inputs,
    make_printable_path,
    process_bags,
)


class EmbeddingSummary(NamedTuple):
    """What was written, and what failed."""

    slides: int
    """Rows of the table."""
    width: int
    """Length of a vector."""
    failures: dict[str, str]
    """Reasons by slide."""


def embed_bags(
    bags: Paths,
    model: ModelPath,
    out: str | Path,
    *,
    device: str = "auto",
    allow_mismatch: bool = False,
    limit_s: float = BAG_LIMIT_S,
    on_progress: ProgressCallback = ignore_progress,
) -> EmbeddingSummary:
    """Write a table of slide embeddings; a bag that fails does not stop the others.

    Args:
        bags: files, or folders of them.
        model: a model folder. The models of a run have spaces of their own: name one.
        out: the CSV file, with the columns slide_id, e_0, e_1, …
        device: auto, cpu, cuda:0, …
        allow_mismatch: embed bags of another encoder or tile size too.
        limit_s: seconds to read one bag.
        on_progress: called after each bag.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import sacmil
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 4, seed=0, instances=(20, 30))
        >>> model = sacmil.create_model("abmil", in_dim=64, num_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     _ = write_synthetic_cohort(synthetic, folder)
        ...     sacmil.save_model(f"{folder}/model", model, classes=["scattered", "clustered"])
        ...     done = embed_bags(f"{folder}/bags", f"{folder}/model", f"{folder}/out.csv")
        >>> done.slides, done.width == model.head.in_features
        (4, True)
    """
    from sacmil import load_model  # says how to get torch if it is missing
    from sacmil.environment import select_device
    from sacmil.models import embed

    target = Path(out)
    _check_output_file(target)
    folder = _find_single_model(to_path("model", model, MODEL_PATH))
    found = _find_bags(list_paths("bags", bags), target)
    requirements = InputRequirements.from_card(read_card(folder), folder.name)
    loaded = load_model(folder).to(select_device(device))
    rows: dict[str, npt.NDArray[np.float32]] = {}

    def embed_bag(name: str, reading: BagReading) -> None:
        requirements.require(reading.bag, found[name], allow_mismatch=allow_mismatch)
        rows[name] = embed(loaded, reading.bag)

    failures = process_bags(
        found, embed_bag, task="embedding", limit_s=limit_s, on_progress=on_progress
    )
    if rows:
        _write_table(target, rows)
    width = len(next(iter(rows.values()), ()))
    named = {make_printable_path(name): reason for name, reason in failures.items()}
    return EmbeddingSummary(len(rows), width, named)


def _check_output_file(out: Path) -> None:
    """Reject a folder, and a file that is no table of embeddings: it would be replaced."""
    if out.is_dir():
        raise OptionError(f"{out}: is a folder; expected a CSV file, choose another `out`")
    if not out.exists():
        return
    with out.open("rb") as file:
        if not file.readline().startswith(b"slide_id,e_0"):
            raise OptionError(f"{out}: exists and is no table of embeddings; choose another `out`")


def _find_single_model(path: Path) -> Path:
    folders = find_model_folders(path)
    if len(folders) > 1:
        raise ModelFolderError(
            f"{path}: holds {len(folders)} models, whose embeddings cannot be compared; name one "
            f"of them, such as {folders[0]}"
        )
    if (folders[0] / ONNX_FILE).is_file():
        raise ModelFolderError(
            f"{path}: is an exported model, which has no embedding; expected the model folder it "
            "was exported from"
        )
    return folders[0]


def _find_bags(items: Iterable[str | Path], out: Path) -> dict[str, Path]:
    found = find_inputs(items, outside=out)
    if found.slides:
        first = next(iter(found.slides.values()))
        raise InputError(
            f"{first}: is a slide; expected bags: make them with sacmil extract, then embed those"
        )
    return dict(sorted(found.bags.items()))


def _write_table(out: Path, rows: dict[str, npt.NDArray[np.float32]]) -> None:
    width = len(next(iter(rows.values())))
    with atomic_write(out) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slide_id", *(f"e_{number}" for number in range(width))])
        for name, row in rows.items():  # with enough digits for the same float32 again
            writer.writerow([escape_cell(name), *(f"{value:.9g}" for value in row)])
