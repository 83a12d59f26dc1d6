"""Runs the demonstration of survival, which has no slides and begins with bags.

::

    OUT/
    ├── settings.json              settings; other settings need another folder
    ├── cohort/                    table.csv and bags/
    ├── run/                       the cross-validation
    ├── evaluation/                tables and plots of it, report.html
    └── new/                       bags of new patients; answers/ has their heatmaps and pages
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.atomic import exclusive
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.splits import make_folds
from sacmil.environment import count_cores
from sacmil.errors import RunError
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.plots import check_matplotlib
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.formats import write_bag
from sacmil.synthetic.bags import (
    InfiltrationSurvival,
    SurvivalTruth,
    SyntheticCohort,
    make_labeled_bag,
    make_synthetic_cohort,
    write_synthetic_cohort,
)
from sacmil.training.config import DEFAULT_MODEL, TrainingConfig
from sacmil.training.train import cross_validate
from sacmil.workflows.demo import MAX_SERIAL_EPOCHS, claim_folder
from sacmil.workflows.evaluate import evaluate
from sacmil.workflows.inputs import WorkflowCallbacks
from sacmil.workflows.predict import predict_slides

_SURVIVAL_TASK = InfiltrationSurvival(
    contrast=7, stray=0, tumour_share=(0.2, 0.22), immune_share=0.8, rim=1.0
)
"""Tumour and immune cells are many, so that small slides show the infiltration."""
_SURVIVAL_MODELS: dict[str, dict[str, Any]] = {
    DEFAULT_MODEL: {"dim": 64, "width": 64, "waves": 16, "near_strength": 1.0},
    "mean_pool": {"hidden": 64},
}
"""Small, and the first learns the arrangement sooner than with its defaults."""
_SURVIVAL_TRAINING = {"lr": 2e-3}
CHANCE = 0.5
"""Harrell's c of a model that knows nothing."""


@dataclass(frozen=True, kw_only=True)
class SurvivalDemoSettings:
    """Settings of the demonstration of survival."""

    slides: int = 600
    """One per patient."""
    folds: int = 3
    epochs: int = 16
    seed: int = 1
    """Of cohort, folds and weights."""
    pictures: int = 4
    """Number of new patients with a heatmap and a page."""
    instances: tuple[int, int] = (100, 400)
    """Fewest and most tiles of a slide."""
    dim: int = 8
    """Width of the features."""

    @classmethod
    def make_quick(cls, **changed: Any) -> SurvivalDemoSettings:
        """Return a small demonstration, in which the arrangement can still be learned."""
        small: dict[str, Any] = {"slides": 400, "folds": 2, "epochs": 12}
        return cls(**{**small, "instances": (100, 200), **changed})

    def make_configs(self) -> dict[str, TrainingConfig]:
        """Return a model that sees the arrangement and one that does not, trained equally."""
        training = {"epochs": self.epochs, **_SURVIVAL_TRAINING}
        return {
            name: TrainingConfig(model=name, options=options, training=training, seed=self.seed)
            for name, options in _SURVIVAL_MODELS.items()
        }

    def make_cohort(self) -> SyntheticCohort:
        """Return the cohort that models are trained and tested on."""
        return make_synthetic_cohort(
            _SURVIVAL_TASK, self.slides, self.seed, instances=self.instances, dim=self.dim
        )

    def to_json(self) -> str:
        """Return the settings as JSON, to recognise a folder of the same demonstration."""
        models = {"models": _SURVIVAL_MODELS, "training": _SURVIVAL_TRAINING}
        known = {"task": _SURVIVAL_TASK.name, **asdict(_SURVIVAL_TASK), **asdict(self), **models}
        return json.dumps(known, indent=1) + "\n"


class NewPatient(NamedTuple):
    """A patient that no model was trained on, and the prediction."""

    slide_id: str
    prediction: str
    truth: SurvivalTruth


def run_survival_demo(
    out: Path, settings: SurvivalDemoSettings, callbacks: WorkflowCallbacks | None = None
) -> SurvivalDemoRun:
    """Do everything that is missing in a folder, and write its report.

    Args:
        out: the top of this file lists its contents.
        settings: size and seed.
        callbacks: progress.
    """
    check_matplotlib("the demonstration's report")
    with exclusive(out, purpose="demonstration"):
        claim_folder(out, settings.to_json())
        demo = SurvivalDemoRun(out, settings, callbacks or WorkflowCallbacks())
        demo.run()
        return demo


class SurvivalDemoRun:
    """A demonstration of survival, and its results once it has run.

    Args:
        out: folder to write to.
        settings: size and seed.
        callbacks: progress.
    """

    def __init__(
        self, out: Path, settings: SurvivalDemoSettings, callbacks: WorkflowCallbacks
    ) -> None:
        self.out, self.settings, self.callbacks = out, settings, callbacks
        self.cohort = settings.make_cohort()
        self.page, self.answers = out / "evaluation" / "report.html", out / "new" / "answers"

    def run(self) -> None:
        """Do every step; what exists is not done again."""
        if not (self.out / "cohort" / "table.csv").is_file():  # written last
            on_progress = self.callbacks.on_progress
            write_synthetic_cohort(self.cohort, self.out / "cohort", on_progress=on_progress)
        self._cross_validate()
        self.oracle = self.cohort.compute_oracle_metrics()
        self.report = self._write_report()
        self.new_patients = self._predict_new_patients()

    @property
    def verdict(self) -> str:
        """Whether the model that sees the arrangement has learned anything."""
        found = self.report.estimates[DEFAULT_MODEL]["c"]
        if found.low > CHANCE:
            return f"{DEFAULT_MODEL} sees the arrangement of tiles: its c is above chance"
        return (
            f"too small to learn: the c of {DEFAULT_MODEL} may be chance; expected more slides or "
            "epochs"
        )

    def _cross_validate(self) -> None:
        settings, table = self.settings, self.cohort.table
        configs = settings.make_configs()
        parallel = settings.epochs > MAX_SERIAL_EPOCHS
        workers = min(count_cores(), len(configs) * settings.folds) if parallel else 1
        validated = cross_validate(
            Dataset(table, self.out / "cohort" / "bags"),
            configs,
            out=self.out / "run",
            folds=make_folds(table, settings.folds, seed=settings.seed),
            seeds=(settings.seed,),
            devices=("cpu",) * workers,
            on_progress=self.callbacks.on_progress,
        )
        for job, reason in validated.failures.items():
            raise RunError(f"{job}: {reason}; run the command again to retry")

    def _write_report(self) -> Report:
        patients, oracle = self.settings.slides, self.oracle["c"]
        found = replace(
            evaluate(self.out / "run"),
            title="Survival, a demonstration",
            data=f"{patients} synthetic patients; c of an oracle: {oracle:.3f}",
            localization=[],  # labels of tiles are tumor, which does not decide the hazard
        )
        report = found.make_report(comparisons=compare_models(found.predictions))
        write_report_folder(self.out / "evaluation", report)
        return report

    def _predict_new_patients(self) -> list[NewPatient]:
        """Predict patients of the same source with the models of all folds; write their pages."""
        first, cohort = self.settings.slides, self.cohort
        numbers = range(first, first + self.settings.pictures)
        made = [make_labeled_bag(cohort.settings, cohort.seed, number) for number in numbers]
        folder = self.out / "new" / "bags"
        for bag, _ in made:
            path = folder / f"{bag.slide_id}.h5"
            if not path.is_file():
                write_bag(path, bag)
        predicted = predict_slides(
            folder,
            self.out / "run" / DEFAULT_MODEL,
            self.answers,
            device="cpu",
            report=True,
            on_progress=self.callbacks.on_progress,
        )
        for failure in predicted.failures:
            raise RunError(failure.reason)
        headlines = {
            record.slide_id: predicted.task.describe(one).headline
            for record in predicted.records
            for one in record.select_models(predicted.models)
        }
        return [NewPatient(bag.slide_id, headlines[bag.slide_id], truth) for bag, truth in made]
