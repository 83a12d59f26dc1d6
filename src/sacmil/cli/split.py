"""``sacmil split``: divide a cohort into folds by patient, or check existing splits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
from sacmil.errors import CohortWarning, format_count

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.cohorts.split_cohort import CohortSplit, SetCounts

DATASETS = ["camelyon16", "tcga-lung", "tcga-brca"]


@click.command()
@click.argument("table", type=opt.EXISTING)
@opt.option("--folds", "Number of folds.", click.IntRange(2), default=5)
@opt.option("--seed", "Seed of the folds.", default=0)
@opt.option("--out", "Folder for splits_<fold>.csv.", opt.PATH)
@opt.option("--repeats", "Sets of folds.", opt.COUNT, default=1)
@opt.option(
    "--validation",
    "Share of the non-test patients used for validation.",
    click.FloatRange(0, 1, max_open=True),
    default=0.15,
)
@opt.flag("--overwrite", "Replace existing splits in --out.")
@opt.option(
    "--check",
    "Check splits of CLAM, STAMP, TransMIL, Patho-Bench or torchmil; --out converts them.",
    opt.EXISTING,
)
@opt.option(
    "--dataset",
    "TABLE is this dataset's download: a label table, a GDC sample sheet or CAMELYON16's "
    "folder. Also writes table.csv.",
    DATASETS,
)
@opt.option("--clinical", "For tcga-brca: table of histological types.", opt.EXISTING_FILE)
@opt.cohort_options
def command(
    table: Path,
    folds: int,
    check: Path | None,
    dataset: str | None,
    clinical: Path | None,
    **options: Any,
) -> None:
    """Divide the cohort of TABLE into stratified folds; each patient is in one set of a fold."""
    from sacmil.cohorts.cohort import read_cohort
    from sacmil.cohorts.split_cohort import split_cohort

    target = {name: options.pop(name) for name in ("out", "overwrite")}
    numbers = {name: options.pop(name) for name in ("seed", "repeats", "validation")}
    out, columns = target["out"], options
    _check_call(out, check, dataset, clinical, columns)
    if dataset is not None:
        cohort, given = _read_download(dataset, table, folds, clinical, numbers)
    else:
        cohort, given = read_cohort(table, **columns), {"folds": check or folds}
    target |= {"preserve_sites": bool(columns["site"]), "with_table": dataset is not None}
    opt.print_targets(cohort)
    split = split_cohort(cohort, **given, **numbers, **target)
    _print_counts(split)
    for text in split.find_training_problems():
        warnings.warn(text, CohortWarning, stacklevel=1)
    if out is not None:
        _print_files(split, out, official=bool(given.get("official")), with_table=bool(dataset))


def _check_call(
    out: Path | None,
    check: Path | None,
    dataset: str | None,
    clinical: Path | None,
    columns: dict[str, Any],
) -> None:
    if out is None and check is None:
        raise click.UsageError("expected --out DIR to write folds to, or --check SPLITS to check")
    if dataset is not None and check is not None:
        raise click.UsageError("--dataset makes folds and --check reads them; leave one out")
    if clinical is not None and dataset != "tcga-brca":
        raise click.UsageError("--clinical is for --dataset tcga-brca only")
    if dataset == "camelyon16" and columns["site"]:
        raise click.UsageError("CAMELYON16 does not name its sites; leave --preserve out")
    if dataset is not None:
        others = {name: value for name, value in columns.items() if name != "site"}
        opt.reject_given(others, "--dataset sets columns and classes; leave {} out")


def _read_download(
    dataset: str, source: Path, folds: int, clinical: Path | None, numbers: dict[str, Any]
) -> tuple[Cohort, dict[str, Any]]:
    """Return the cohort, and its folds: those of CAMELYON16 come with the official split."""
    from sacmil.cohorts.camelyon16 import read_camelyon16
    from sacmil.cohorts.tcga import read_tcga_brca, read_tcga_lung

    if dataset == "camelyon16":
        found = read_camelyon16(source, folds=folds, **numbers)
        return found.cohort, {"folds": found.folds, "official": found.official}
    is_lung = dataset == "tcga-lung"
    cohort = read_tcga_lung(source) if is_lung else read_tcga_brca(source, clinical)
    return cohort, {"folds": folds}


def _print_counts(split: CohortSplit) -> None:
    """Print the patients and slides of each class in each set of each fold."""
    cohort = split.cohort
    slides = format_count(len(cohort), "slide")
    patients = format_count(len(cohort.patients), "patient")
    click.echo(f"{slides} of {patients}; patients/slides:\n")
    rows = [("fold", "set", "all", *split.counted_names), *map(_format_counts, split.count_sets())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for fold, subset, *counts in rows:
        cells = (count.rjust(width) for count, width in zip(counts, widths[2:], strict=True))
        line = [fold.rjust(widths[0]), subset.ljust(widths[1]), *cells]
        click.echo("  ".join(line).rstrip())


def _format_counts(counts: SetCounts) -> tuple[str, ...]:
    patients = (counts.patients, *counts.patients_by_class)
    slides = (counts.slides, *counts.slides_by_class)
    return (str(counts.fold), counts.name, *map("{}/{}".format, patients, slides))


def _print_files(split: CohortSplit, out: Path, *, official: bool, with_table: bool) -> None:
    from sacmil.cohorts.split_cohort import OFFICIAL_FOLDER, TABLE_FILE

    files = split.files
    click.echo(f"\n{len(split.folds)} folds in {len(files)} files: {files[0]}, …")
    if official:
        click.echo(f"the official test set: {out / OFFICIAL_FOLDER}")
    if with_table:
        click.echo(f"the cohort: {out / TABLE_FILE}")
