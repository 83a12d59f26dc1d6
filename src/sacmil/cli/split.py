"""``sacmil split``: a cohort into folds by patient; or a look at folds somebody else made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sacmil.cli._cohort import cohort_options, read_cohort_table

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.cohorts.splits import Fold


DATASETS = ("camelyon16", "tcga-lung", "tcga-brca")
TABLE = "table.csv"
OFFICIAL = "official"


@click.command()
@click.argument("table", type=click.Path(exists=True, path_type=Path))
@click.option("--folds", default=5, show_default=True, type=click.IntRange(2), help="How many.")
@click.option("--seed", default=0, show_default=True, help="Another seed, other folds.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of splits_<fold>.csv.")
@click.option(
    "--repeats", default=1, show_default=True, type=click.IntRange(1), help="Divide so often."
)
@click.option(
    "--validation",
    default=0.15,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of the patients not tested on that chooses the epoch.",
)
@click.option("--overwrite", is_flag=True, help="Replace other splits in --out.")
@click.option(
    "--check",
    type=click.Path(exists=True, path_type=Path),
    help="Splits to look at, of CLAM, STAMP, TransMIL, Patho-Bench or torchmil; with --out they "
    "are written as ours.",
)
@click.option(
    "--dataset",
    type=click.Choice(DATASETS),
    help="TABLE is what one downloads of it: a label table, a GDC sample sheet, CAMELYON16's "
    "folder. Writes table.csv too.",
)
@click.option(
    "--clinical",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For tcga-brca: the table of histological types.",
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
    """Divide the cohort of TABLE into folds, stratified, no patient on two sides."""
    _check_call(out, check, dataset, options)
    clinical = options.pop("clinical")
    making = {key: options.pop(key) for key in ("folds", "seed", "repeats", "validation")}
    if dataset is not None:
        divided = _split_dataset(
            dataset, table, clinical, sites=bool(options["preserve"]), **making
        )
    else:
        divided = _split_table(
            read_cohort_table(table, **options), check, sites=bool(options["preserve"]), **making
        )
    where = _write_splits(out, divided, overwrite=overwrite, with_table=dataset is not None)
    _print_counts(divided.cohort, divided.folds)
    click.echo(where, nl=bool(where))


class _SplitCohort(NamedTuple):
    cohort: Cohort
    folds: list[Fold]
    official: Fold | None = None


def _check_call(
    out: Path | None, check: Path | None, dataset: str | None, options: dict[str, Any]
) -> None:
    if out is None and check is None:
        raise click.UsageError("say where folds go by --out DIR, or which to look at by --check")
    if dataset is not None and check is not None:
        raise click.UsageError("--dataset makes folds and --check reads them; leave one out")
    if options["clinical"] is not None and dataset != "tcga-brca":
        raise click.UsageError("--clinical is for --dataset tcga-brca")
    of_tables = ("slide_column", "patient_column", "label_column", "classes", "slide_table")
    given = [name for name in (*of_tables, "sheet") if options[name] is not None]
    if dataset is not None and given:
        option = given[0].replace("_", "-")
        raise click.UsageError(f"--dataset knows its columns and classes; leave --{option} out")


def _split_table(cohort: Cohort, check: Path | None, *, sites: bool, **making: Any) -> _SplitCohort:
    from sacmil.cohorts.split_files import read_splits
    from sacmil.cohorts.splits import make_folds

    if check is None:
        return _SplitCohort(cohort, make_folds(cohort, **making, preserve_sites=sites))
    cut = {key: making[key] for key in ("seed", "validation")}
    return _SplitCohort(cohort, read_splits(check, cohort, **cut))


def _split_dataset(
    name: str, source: Path, clinical: Path | None, *, sites: bool, **making: Any
) -> _SplitCohort:
    from sacmil.cohorts.camelyon16 import read_camelyon16
    from sacmil.cohorts.splits import make_folds
    from sacmil.cohorts.tcga import read_tcga_brca, read_tcga_lung

    if name == "camelyon16":
        if sites:
            raise click.UsageError("CAMELYON16 does not say its sites; leave --preserve out")
        found = read_camelyon16(source, **making)
        return _SplitCohort(found.cohort, found.folds, found.official)
    cohort = read_tcga_lung(source) if name == "tcga-lung" else read_tcga_brca(source, clinical)
    return _SplitCohort(cohort, make_folds(cohort, **making, preserve_sites=sites))


def _write_splits(
    out: Path | None, split: _SplitCohort, *, overwrite: bool, with_table: bool
) -> str:
    """Write what was asked for; where it went, in words."""
    from sacmil.cohorts.cohort import write_cohort
    from sacmil.cohorts.split_files import write_splits

    if out is None:
        return ""
    files = write_splits(out, split.folds, split.cohort, overwrite=overwrite)
    told = [f"{len(split.folds)} folds: {files[0]} and {len(files) - 1} more"]
    if split.official is not None:
        write_splits(out / OFFICIAL, [split.official], split.cohort, overwrite=overwrite)
        told.append(f"the official test set: {out / OFFICIAL}")
    if with_table:
        write_cohort(out / TABLE, split.cohort)
        told.append(f"the cohort: {out / TABLE}")
    return "\n" + "\n".join(told)


def _print_counts(cohort: Cohort, folds: Sequence[Fold]) -> None:
    """Print patients and slides of each class, fold by fold, part by part."""
    click.echo(f"{len(cohort)} slides of {len(cohort.patients)} patients; patients/slides:\n")
    rows = [("fold", "part", "all", *cohort.classes), *_make_rows(cohort, folds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for fold, part, *counts in rows:
        told = (count.rjust(width) for count, width in zip(counts, widths[2:], strict=True))
        line = [fold.rjust(widths[0]), part.ljust(widths[1]), *told]
        click.echo("  ".join(line).rstrip())


def _make_rows(cohort: Cohort, folds: Sequence[Fold]) -> Iterator[tuple[str, ...]]:
    for number, fold in enumerate(folds):
        for part, ids in zip(fold._fields, fold, strict=True):
            rows = cohort.index.find_rows(ids)
            patients, slides = cohort.index.count_patients(rows), cohort.index.count_slides(rows)
            counts = [f"{n}/{of_class}" for n, of_class in zip(patients, slides, strict=True)]
            everyone = int(cohort.index.mark_patients(rows).sum())
            yield (str(number), part, f"{everyone}/{len(ids)}", *counts)
