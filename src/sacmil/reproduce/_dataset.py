"""What stands for a dataset of the paper: the user's own copy of it, or a synthetic cohort."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sacmil.errors import CohortWarning, ConfigError
from sacmil.reproduce._paper import DATASETS, PaperTable
from sacmil.reproduce._request import DatasetPaths, ReproduceRequest

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.cohorts.splits import Fold
    from sacmil.synthetic.bags import SyntheticCohort
    from sacmil.training.cross_validate import ProgressCallback

STAND_IN_TASKS = {"camelyon16": "metastasis", "tcga-lung": "subtype", "tcga-brca": "cluster"}
"""The task most like each: a small lesion or none; two mixtures; cells in nests or scattered."""
PAPER_FEATURE_DIM = 1024
"""Of the features of both the paper's encoders."""
SYNTHETIC_FEATURE_DIM = 64
"""Width of synthetic features."""


class ReproduceDataset(NamedTuple):
    """Slides to cross-validate on."""

    dataset: str
    """Of the paper, which it is or stands for."""
    name: str
    """Of the folder its runs go to."""
    cohort: Cohort
    bags: Mapping[str, Path]
    folds: Sequence[Fold]
    description: str
    """What it is, for the caption."""
    synthetic: bool


def load_datasets(
    out: Path, paper: PaperTable, request: ReproduceRequest
) -> list[ReproduceDataset]:
    """What there is to train on for each dataset of a table, all of it checked before any is.

    Args:
        out: where synthetic cohorts are kept.
        paper: the table.
        request: what was asked for; datasets without data are left out where others have some.
    """
    there = request.data or paper.datasets
    wanted = [name for name in paper.datasets if request.is_requested(name) and name in there]
    if not wanted:
        raise ConfigError(
            f"nothing to train on: {paper.title!r} is about {', '.join(paper.datasets)}, and none "
            "of it was asked for or given; see --data and --dataset"
        )
    if request.data:
        return [
            _load_user_dataset(name, request.data[name], paper, request.folds) for name in wanted
        ]
    return [_make_synthetic_dataset(out, name, request) for name in wanted]


# --- the user's own ------------------------------------------------------------------------------


def _load_user_dataset(
    dataset: str, source: DatasetPaths, paper: PaperTable, folds: int
) -> ReproduceDataset:
    from sacmil.cohorts.bags import check_bags, locate_bags
    from sacmil.cohorts.splits import make_folds

    cohort = _read_cohort(dataset, source.table, folds)
    bags = locate_bags(cohort, source.bags)
    check_bags(bags)
    features = _describe_features(next(iter(bags.values())), paper.encoder)
    about = f"{DATASETS[dataset]} ({source.table.name}; {source.bags.name}, {features})"
    name = f"{dataset}-{paper.encoder}"  # Table II has the same rows over other bags
    return ReproduceDataset(
        dataset, name, cohort, bags, make_folds(cohort, folds), about, synthetic=False
    )


def _read_cohort(dataset: str, table: Path, folds: int) -> Cohort:
    from sacmil.cohorts.camelyon16 import read_camelyon16
    from sacmil.cohorts.tcga import read_tcga_brca, read_tcga_lung

    if dataset == "camelyon16":
        # As in the paper, folds divide the training slides; the official test set stays apart.
        return read_camelyon16(table, folds=folds).training
    return read_tcga_lung(table) if dataset == "tcga-lung" else read_tcga_brca(table)


def _describe_features(path: Path, encoder: str) -> str:
    """What the features of a bag are; a warning where they are not those of the table."""
    from sacmil.formats import read_bag

    bag = read_bag(path)
    found = bag.encoder.name if bag.encoder else None
    told = f"{bag.dim} features by {found or 'an encoder it does not name'}"
    family = encoder.split("_")[0]  # peers call it uni, we uni_v1
    if bag.dim != PAPER_FEATURE_DIM or (found and family not in found.lower()):
        warnings.warn(
            f"{path}: has {told}; the paper's table is over {PAPER_FEATURE_DIM} by {encoder}: "
            f"sacmil extract --encoder {encoder}",
            CohortWarning,
            stacklevel=2,
        )
    return told


# --- the synthetic -------------------------------------------------------------------------------


def _make_synthetic_dataset(out: Path, dataset: str, request: ReproduceRequest) -> ReproduceDataset:
    from sacmil.cohorts.splits import make_folds
    from sacmil.synthetic.bags import make_synthetic_cohort

    settings = request.synthetic
    task = settings.task or STAND_IN_TASKS[dataset]
    made = make_synthetic_cohort(
        task,
        settings.slides,
        settings.seed,
        difficulty=settings.difficulty,
        instances=settings.instances,
        dim=SYNTHETIC_FEATURE_DIM,
    )
    folds = make_folds(made.table, request.folds)
    low, high = settings.instances
    name = f"{task}-{settings.difficulty}-{settings.slides}x{low}-{high}-seed{settings.seed}"
    folder = out / "cohorts" / name
    if not folder.is_dir():
        _write_synthetic_cohort(made, folder, request.progress)
    bags = {slide.slide_id: folder / "bags" / f"{slide.slide_id}.h5" for slide in made.table.slides}
    about = (
        f"a synthetic cohort, not {DATASETS[dataset]} (task {task}, {settings.difficulty}, "
        f"{low:,} to {high:,} instances a slide, {SYNTHETIC_FEATURE_DIM} features, seed "
        f"{settings.seed})"
    )
    return ReproduceDataset(dataset, name, made.table, bags, folds, about, synthetic=True)


def _write_synthetic_cohort(
    cohort: SyntheticCohort, folder: Path, progress: ProgressCallback | None
) -> None:
    """Make the bags; a folder that is there is whole."""
    from sacmil.atomic import atomic_directory
    from sacmil.synthetic.bags import write_synthetic_cohort

    def tell(done: int, total: int) -> None:
        if progress:
            progress(f"making {folder.name}", done, total)

    with atomic_directory(folder) as partial:
        write_synthetic_cohort(cohort, partial, on_progress=tell)
