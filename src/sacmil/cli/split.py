"""``sacmil split``: divide a cohort into folds by patient, or check existing splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sacmil.cli._cohort import cohort_options, get_option_name

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.cohorts.splits import Fold


DATASETS = ("camelyon16", "tcga-lung", "tcga-brca")
TABLE = "table.csv"
OFFICIAL = "official"


@click.command()
@click.argument("table", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(2), help="Number of folds."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the folds.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for splits_<fold>.csv.")
@click.option(
    "--repeats", default=1, show_default=True, type=click.IntRange(1), help="Sets of folds."
)
@click.option(
    "--validation",
    default=0.15,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of the non-test patients used for validation.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing splits in --out.")
@click.option(
    "--check",
    type=click.Path(exists=True, path_type=Path),
    help="Check splits of CLAM, STAMP, TransMIL, Patho-Bench or torchmil; --out converts them.",
)
@click.option(
    "--dataset",
    type=click.Choice(DATASETS),
    help="TABLE is this dataset's download: a label table, a GDC sample sheet or CAMELYON16's "
    "folder. Also writes table.csv.",
)
@click.option(
    "--clinical",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For tcga-brca: table of histological types.",
)
@cohort_options
def command(
    table: Path,
    out: Path | None,
    check: Path | None,
    dataset: str | None,
    *,
    overwrite: bool,
    **options: Any,
) -> None:
    """Divide the cohort of TABLE into stratified folds; each patient is in one set of a fold."""
    from sacmil.cohorts.cohort import read_cohort

    _check_call(out, check, dataset, options)
    clinical = options.pop("clinical")
    fold_options = {key: options.pop(key) for key in ("folds", "seed", "repeats", "validation")}
    if dataset is not None:
        split = _split_dataset(
            dataset, table, clinical, sites=bool(options["site"]), **fold_options
        )
    else:
        split = _split_table(
            read_cohort(table, **options),
            check,
            sites=bool(options["site"]),
            **fold_options,
        )
    description = _write_splits(out, split, overwrite=overwrite, with_table=dataset is not None)
    _print_counts(split.cohort, split.folds)
    click.echo(description, nl=bool(description))


class _SplitCohort(NamedTuple):
    cohort: Cohort
    folds: list[Fold]
    official: Fold | None = None


def _check_call(
    out: Path | None, check: Path | None, dataset: str | None, options: dict[str, Any]
) -> None:
    if out is None and check is None:
        raise click.UsageError("expected --out DIR to write folds to, or --check SPLITS to check")
    if dataset is not None and check is not None:
        raise click.UsageError("--dataset makes folds and --check reads them; leave one out")
    if options["clinical"] is not None and dataset != "tcga-brca":
        raise click.UsageError("--clinical is for --dataset tcga-brca only")
    table_options = ("slide", "patient", "label", "classes", "slide_table", "sheet")
    given = [get_option_name(name) for name in table_options if options[name] is not None]
    if dataset is not None and given:
        raise click.UsageError(f"--dataset sets columns and classes; leave {given[0]} out")


def _split_table(
    cohort: Cohort, check: Path | None, *, sites: bool, **fold_options: Any
) -> _SplitCohort:
    from sacmil.cohorts.split_files import read_splits
    from sacmil.cohorts.splits import make_folds

    if check is None:
        return _SplitCohort(cohort, make_folds(cohort, **fold_options, preserve_sites=sites))
    cut = {key: fold_options[key] for key in ("seed", "validation")}
    return _SplitCohort(cohort, read_splits(check, cohort, **cut))


def _split_dataset(
    name: str, source: Path, clinical: Path | None, *, sites: bool, **fold_options: Any
) -> _SplitCohort:
    from sacmil.cohorts.camelyon16 import read_camelyon16
    from sacmil.cohorts.splits import make_folds
    from sacmil.cohorts.tcga import read_tcga_brca, read_tcga_lung

    if name == "camelyon16":
        if sites:
            raise click.UsageError("CAMELYON16 does not name its sites; leave --preserve out")
        found = read_camelyon16(source, **fold_options)
        return _SplitCohort(found.cohort, found.folds, found.official)
    cohort = read_tcga_lung(source) if name == "tcga-lung" else read_tcga_brca(source, clinical)
    return _SplitCohort(cohort, make_folds(cohort, **fold_options, preserve_sites=sites))


def _write_splits(
    out: Path | None, split: _SplitCohort, *, overwrite: bool, with_table: bool
) -> str:
    """Write the splits, if requested, and return a description of the files."""
    from sacmil.cohorts.cohort import write_cohort
    from sacmil.cohorts.split_files import write_splits

    if out is None:
        return ""
    files = write_splits(out, split.folds, split.cohort, overwrite=overwrite)
    lines = [f"{len(split.folds)} folds: {files[0]} and {len(files) - 1} more"]
    if split.official is not None:
        write_splits(out / OFFICIAL, [split.official], split.cohort, overwrite=overwrite)
        lines.append(f"the official test set: {out / OFFICIAL}")
    if with_table:
        write_cohort(out / TABLE, split.cohort)
        lines.append(f"the cohort: {out / TABLE}")
    return "\n" + "\n".join(lines)


def _print_counts(cohort: Cohort, folds: Sequence[Fold]) -> None:
    """Print the patients and slides of each class in each set of each fold."""
    click.echo(f"{len(cohort)} slides of {len(cohort.patients)} patients; patients/slides:\n")
    rows = [("fold", "set", "all", *cohort.classes), *_make_rows(cohort, folds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for fold, subset, *counts in rows:
        cells = (count.rjust(width) for count, width in zip(counts, widths[2:], strict=True))
        line = [fold.rjust(widths[0]), subset.ljust(widths[1]), *cells]
        click.echo("  ".join(line).rstrip())


def _make_rows(cohort: Cohort, folds: Sequence[Fold]) -> Iterator[tuple[str, ...]]:
    for number, fold in enumerate(folds):
        for subset, ids in zip(fold._fields, fold, strict=True):
            rows = cohort.index.find_rows(ids)
            patients, slides = cohort.index.count_patients(rows), cohort.index.count_slides(rows)
            counts = [f"{n}/{of_class}" for n, of_class in zip(patients, slides, strict=True)]
            everyone = int(cohort.index.mark_patients(rows).sum())
            yield (str(number), subset, f"{everyone}/{len(ids)}", *counts)
