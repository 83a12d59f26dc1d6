"""Runs the demonstration: draw, extract, cross-validate, export, predict, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sacmil.atomic import exclusive, remove_partial_files
from sacmil.cohorts.cohort import Cohort, write_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.errors import RunError
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.plots import check_matplotlib
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.evaluation.summary import summarize
from sacmil.results import PREDICTIONS_FILE, Predictions, write_predictions
from sacmil.synthetic.slides import make_cohort, make_slide_cohort
from sacmil.training.train import cross_validate
from sacmil.workflows.demo.bags import DemoBags, count_cores, draw_missing_slides, extract_bags
from sacmil.workflows.demo.folder import DemoFolder
from sacmil.workflows.demo.page import write_page
from sacmil.workflows.demo.predictor import DemoPredictor, export_missing_models
from sacmil.workflows.demo.result import DemoResult
from sacmil.workflows.demo.settings import EXPORTED_MODELS, DemoSettings
from sacmil.workflows.predict import predict_slides
from sacmil.workflows.prediction_settings import WorkflowCallbacks
from sacmil.workflows.runs import read_run_settings

_NUM_NEW_SLIDES = 2
"""Number of unlabelled slides."""


def run_demo(
    out: Path, settings: DemoSettings, callbacks: WorkflowCallbacks | None = None
) -> DemoResult:
    """Do everything that is missing in a folder, and write its page.

    Args:
        out: see demo/folder.py for its contents.
        settings: size and seed.
        callbacks: progress.
    """
    check_matplotlib("the demonstration's report")
    folder = DemoFolder(out)
    with exclusive(out, purpose="demonstration"):
        remove_partial_files(out)
        folder.claim(settings)
        found = _DemoRun(folder, settings, callbacks or WorkflowCallbacks()).run()
        write_page(found)
        return found


class _DemoRun:
    def __init__(
        self, folder: DemoFolder, settings: DemoSettings, callbacks: WorkflowCallbacks
    ) -> None:
        self.folder, self.settings, self.callbacks = folder, settings, callbacks
        self.slides = make_slide_cohort(settings.slides, settings.seed, settings=settings.amounts)
        self.steps_done: dict[str, int] = {}

    def run(self) -> DemoResult:
        folder, slides = self.folder, self.slides
        self.steps_done["slides drawn"] = draw_missing_slides(
            slides, folder.slides, folder.truth, self.callbacks
        )
        write_cohort(folder.out / "table.csv", make_cohort(slides))
        bags = self._extract_bags()
        cohort = make_cohort(slides).restrict_to(bags.files)
        folds = make_folds(cohort, self.settings.folds, seed=self.settings.seed)
        report = self._cross_validate(cohort, bags, folds)
        self.steps_done["models exported"] = export_missing_models(folder, self.callbacks)
        predictor = DemoPredictor(
            folder=folder,
            slides=slides,
            bags=bags.files,
            folds=folds,
            heatmaps_per_class=self.settings.pictures,
            callbacks=self.callbacks,
        )
        results, self.steps_done["slides predicted"] = predictor.predict_slides()
        predictions = predictor.to_predictions(results, self.settings.seed)
        write_predictions(folder.out / PREDICTIONS_FILE, predictions)
        return DemoResult(
            folder=folder,
            report=report,
            localization=predictor.measure_localization(results),
            bags=bags,
            slides=slides,
            illustrated_slides=predictor.select_illustrated_slides(),
            new_predictions=self._predict_new_slides(),
            steps_done=self.steps_done,
        )

    def _extract_bags(self) -> DemoBags:
        slides = [self.folder.slides / slide.file_name for slide in self.slides]
        bags = extract_bags(slides, self.folder.out / "cohort", self.settings, self.callbacks)
        self.steps_done["bags made"] = bags.num_new
        expected = {s.slide_id for s in self.slides if s.artefact in ("no tissue", "truncated")}
        unexpected = bags.failures.keys() - expected
        for slide_id in sorted(unexpected):
            raise RunError(f"{slide_id}: {bags.failures[slide_id]}")
        return bags

    def _cross_validate(self, cohort: Cohort, bags: DemoBags, folds: Sequence[Fold]) -> Report:
        """Cross-validate every model and write the report."""
        run = self.folder.out / "run"
        before = len(_list_finished_jobs(run))
        configs = self.settings.make_configs()
        workers = (
            min(count_cores(), len(configs)) if self.settings.epochs > _MAX_SERIAL_EPOCHS else 1
        )
        validated = cross_validate(
            Dataset(cohort, bags.files),
            configs,
            out=run,
            folds=folds,
            seeds=(self.settings.seed,),
            devices=("cpu",) * workers,
            on_progress=self._report_progress,
        )
        for job, reason in validated.failures.items():
            raise RunError(f"{job}: {reason}; run the command again to retry")
        self.steps_done["models trained"] = len(_list_finished_jobs(run)) - before
        report = self._make_report(run, validated.predictions)
        write_report_folder(self.folder.out / "evaluation", report)
        return report

    def _report_progress(self, task: str, done: int, total: int, note: str = "") -> None:
        self.callbacks.on_progress(task, done, total)

    def _make_report(self, run: Path, predictions: Predictions) -> Report:
        return Report(
            title="Cross-validation of the demonstration",
            predictions=predictions,
            estimates=summarize(predictions),
            comparisons=compare_models(predictions),
            settings=read_run_settings([run]),
            data=f"{self.settings.slides} synthetic slides",
        )

    def _predict_new_slides(self) -> dict[str, str]:
        """Predict new slides with the exported run, as sacmil predict does."""
        folder, settings = self.folder.out / "new", self.settings
        others = make_slide_cohort(4, settings.seed + 1, settings=settings.amounts)[
            1 : 1 + _NUM_NEW_SLIDES
        ]
        unseen = [replace(s, slide_id=f"new-{n}") for n, s in enumerate(others, start=1)]
        draw_missing_slides(unseen, folder / "slides", folder / "truth", self.callbacks)
        predicted = predict_slides(
            [folder / "slides" / slide.file_name for slide in unseen],
            self.folder.out / "onnx" / EXPORTED_MODELS[0],
            folder / "answers",
            device="cpu",
            report=True,
            encoder=settings.encoder,
            on_progress=self.callbacks.on_progress,
            track_extraction=self.callbacks.track_extraction,
        )
        for failure in predicted.failures:
            raise RunError(failure.reason)
        classes = predicted.classes
        return {
            record.slide_id: f"{one.find_predicted_class(classes)} {max(one.probabilities):.2f}"
            for record in predicted.records
            for one in record.select_models(predicted.models)
        }


_MAX_SERIAL_EPOCHS = 5
"""Maximum number of epochs for which starting processes takes longer than training."""


def _list_finished_jobs(run: Path) -> list[Path]:
    return list(run.glob("*/seed_*/fold_*/card.json"))
