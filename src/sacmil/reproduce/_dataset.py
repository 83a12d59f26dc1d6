"""Datasets of the paper: the user's own copy, or a synthetic cohort instead."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sacmil.atomic import atomic_directory
from sacmil.cohorts.camelyon16 import read_camelyon16
from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.cohorts.tcga import read_tcga_brca, read_tcga_lung
from sacmil.errors import CohortWarning, ConfigError
from sacmil.formats import read_bag
from sacmil.reproduce._paper import DATASETS, PaperTable
from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort

if TYPE_CHECKING:
    from sacmil.reproduce.experiments import DatasetPaths, ReproduceRequest

STAND_IN_TASKS = {"camelyon16": "metastasis", "tcga-lung": "subtype", "tcga-brca": "cluster"}
"""The task most like each: a small lesion or none; two subtypes; cells in clusters or not."""
PAPER_FEATURE_DIM = 1024
"""Width of the features of both encoders in the paper."""
SYNTHETIC_FEATURE_DIM = 64
"""Width of synthetic features."""


class ReproduceDataset(NamedTuple):
    """Slides to cross-validate on."""

    dataset: str
    """Name of the paper's dataset."""
    name: str
    """Folder of its runs."""
    data: Dataset
    folds: Sequence[Fold]
    description: str
    """Description for the caption."""
    synthetic: bool


def load_datasets(
    out: Path, paper: PaperTable, request: ReproduceRequest
) -> list[ReproduceDataset]:
    """Load and check the datasets of a table.

    Args:
        out: folder for synthetic cohorts.
        paper: the table.
        request: if data are given for some datasets, the others are left out.
    """
    available = request.data or paper.datasets
    wanted = [name for name in paper.datasets if request.is_requested(name) and name in available]
    if not wanted:
        raise ConfigError(
            f"no dataset of {paper.title!r} was requested; expected at least one of "
            f"{', '.join(paper.datasets)}: see `data` and `only`"
        )
    if request.data:
        return [
            _load_user_dataset(name, request.data[name], paper, request.folds) for name in wanted
        ]
    return [_make_synthetic_dataset(out, name, request) for name in wanted]


# --- the user's data ------------------------------------------------------------------------------


def _load_user_dataset(
    dataset: str, source: DatasetPaths, paper: PaperTable, folds: int
) -> ReproduceDataset:
    cohort = _read_cohort(dataset, source.table, folds)
    data = Dataset(cohort, source.bags)
    features = _describe_features(next(iter(data.bags.values())), paper.encoder)
    description = f"{DATASETS[dataset]} ({source.table.name}; {source.bags.name}, {features})"
    name = f"{dataset}-{paper.encoder}"  # Table II has the same rows over other bags
    return ReproduceDataset(
        dataset, name, data, make_folds(cohort, folds), description, synthetic=False
    )


def _read_cohort(dataset: str, table: Path, folds: int) -> Cohort:
    if dataset == "camelyon16":
        # As in the paper, folds divide the training slides; the official test set is not used.
        return read_camelyon16(table, folds=folds).training
    return read_tcga_lung(table) if dataset == "tcga-lung" else read_tcga_brca(table)


def _describe_features(path: Path, encoder: str) -> str:
    """Describe the features of a bag; warn if they are not those of the table."""
    bag = read_bag(path)
    found = bag.encoder.name if bag.encoder else None
    description = f"{bag.dim} features by {found or 'an unnamed encoder'}"
    family = encoder.split("_")[0]  # other tools call it uni, we call it uni_v1
    if bag.dim != PAPER_FEATURE_DIM or (found and family not in found.lower()):
        warnings.warn(
            f"{path}: has {description}; the paper's table uses {PAPER_FEATURE_DIM} by {encoder}: "
            f"extract them with the encoder {encoder}",
            CohortWarning,
            stacklevel=2,
        )
    return description


# --- synthetic cohorts ---------------------------------------------------------------------------


def _make_synthetic_dataset(out: Path, dataset: str, request: ReproduceRequest) -> ReproduceDataset:
    def report(task: str, done: int, total: int, note: str = "") -> None:
        request.progress(f"making {name}", done, total, note)

    settings = request.synthetic
    task = settings.task or STAND_IN_TASKS[dataset]
    synthetic = make_synthetic_cohort(
        task,
        settings.slides,
        settings.seed,
        difficulty=settings.difficulty,
        instances=settings.instances,
        dim=SYNTHETIC_FEATURE_DIM,
    )
    folds = make_folds(synthetic.table, request.folds)
    low, high = settings.instances
    name = f"{task}-{settings.difficulty}-{settings.slides}x{low}-{high}-seed{settings.seed}"
    folder = out / "cohorts" / name
    if not folder.is_dir():  # one that exists is complete
        with atomic_directory(folder) as partial:
            write_synthetic_cohort(synthetic, partial, on_progress=report)
    bags = {
        slide.slide_id: folder / "bags" / f"{slide.slide_id}.h5" for slide in synthetic.table.slides
    }
    description = (
        f"a synthetic cohort, not {DATASETS[dataset]} (task {task}, {settings.difficulty}, "
        f"{low:,} to {high:,} instances a slide, {SYNTHETIC_FEATURE_DIM} features, seed "
        f"{settings.seed})"
    )
    return ReproduceDataset(
        dataset, name, Dataset(synthetic.table, bags), folds, description, synthetic=True
    )
