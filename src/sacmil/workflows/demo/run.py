"""The whole way: draw, extract, cross-validate, export, answer, report; only what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sacmil.cohorts.cohort import Cohort, write_cohort
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.errors import RunError
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.localization import Localization
from sacmil.evaluation.plots import check_matplotlib
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.evaluation.summary import summarize
from sacmil.locking import exclusive, remove_partial_files
from sacmil.results import PREDICTIONS_FILE, Predictions, write_predictions
from sacmil.synthetic.slides import SyntheticSlide, make_cohort, make_slide_cohort
from sacmil.training.cross_validate import TrainingResources, cross_validate
from sacmil.workflows.demo.bags import DemoBags, count_cores, draw_missing_slides, extract_bags
from sacmil.workflows.demo.folder import DemoFolder
from sacmil.workflows.demo.page import write_page
from sacmil.workflows.demo.predictor import DemoPredictor, export_missing_models
from sacmil.workflows.demo.settings import EXPORTED_MODELS, DemoSettings
from sacmil.workflows.evaluate import read_run_settings
from sacmil.workflows.predict import predict_slides
from sacmil.workflows.prediction_settings import PredictionSettings as PredictionSettings
from sacmil.workflows.prediction_settings import WorkflowCallbacks

_NUM_NEW_SLIDES = 2
"""Slides that nobody has labelled."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What came of it."""

    folder: DemoFolder
    report: Report
    """Of the cross-validation."""
    localization: Mapping[str, Localization]
    """By model that was exported."""
    bags: DemoBags
    slides: Sequence[SyntheticSlide]
    illustrated_slides: Sequence[SyntheticSlide]
    new_predictions: Mapping[str, str]
    """Slides that nobody has labelled, and what was said of them."""
    steps_done: Mapping[str, int]
    """How much of each step was done now: nothing where all was there."""


def run_demo(
    out: Path, settings: DemoSettings, callbacks: WorkflowCallbacks | None = None
) -> DemoResult:
    """Do everything that is missing in a folder, and write its page.

    Args:
        out: see demo/folder.py for what is put where.
        settings: how large.
        callbacks: told as it goes on.
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
        folder, drawn = self.folder, self.slides
        self.steps_done["slides drawn"] = draw_missing_slides(
            drawn, folder.slides, folder.truth, self.callbacks
        )
        write_cohort(folder.out / "table.csv", make_cohort(drawn))
        bags = self._extract_bags()
        cohort = make_cohort(drawn).restrict_to(bags.files)
        folds = make_folds(cohort, self.settings.folds, seed=self.settings.seed)
        report = self._cross_validate(cohort, bags, folds)
        self.steps_done["models exported"] = export_missing_models(folder, self.callbacks)
        work = DemoPredictor(
            folder=folder,
            slides=drawn,
            bags=bags.files,
            folds=folds,
            heatmaps_per_class=self.settings.pictures,
            callbacks=self.callbacks,
        )
        results, self.steps_done["slides answered"] = work.predict_slides()
        said = work.to_predictions(results, self.settings.seed)
        write_predictions(folder.out / PREDICTIONS_FILE, said)
        return DemoResult(
            folder=folder,
            report=report,
            localization=work.measure_localization(results),
            bags=bags,
            slides=drawn,
            illustrated_slides=work.select_illustrated_slides(),
            new_predictions=self._predict_new_slides(),
            steps_done=self.steps_done,
        )

    def _extract_bags(self) -> DemoBags:
        slides = [self.folder.slides / slide.file_name for slide in self.slides]
        bags = extract_bags(slides, self.folder.out / "cohort", self.settings, self.callbacks)
        self.steps_done["bags made"] = bags.num_new
        expected = {s.slide_id for s in self.slides if s.artefact in ("no tissue", "truncated")}
        surprises = bags.failures.keys() - expected
        for slide_id in sorted(surprises):
            raise RunError(f"{slide_id}: {bags.failures[slide_id]}")
        return bags

    def _cross_validate(self, cohort: Cohort, bags: DemoBags, folds: Sequence[Fold]) -> Report:
        """Every model on every fold, and what it is worth."""
        run = self.folder.out / "run"
        before = len(_list_finished_jobs(run))
        configs = self.settings.make_configs()
        at_once = (
            min(count_cores(), len(configs)) if self.settings.epochs > _MAX_SERIAL_EPOCHS else 1
        )
        contested = cross_validate(
            run,
            cohort,
            bags.files,
            folds,
            configs,
            seeds=(self.settings.seed,),
            resources=TrainingResources(("cpu",) * at_once),
            on_progress=self._report_progress,
        )
        for part, reason in contested.failures.items():
            raise RunError(f"{part}: {reason}; type the command again to go on")
        self.steps_done["parts trained"] = len(_list_finished_jobs(run)) - before
        assert contested.predictions is not None
        report = self._make_report(run, contested.predictions)
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
            data=f"{self.settings.slides} drawn slides",
        )

    def _predict_new_slides(self) -> dict[str, str]:
        """What the exported run says of slides it has never met, as sacmil predict says it."""
        folder, settings = self.folder.out / "new", self.settings
        others = make_slide_cohort(4, settings.seed + 1, settings=settings.amounts)[
            1 : 1 + _NUM_NEW_SLIDES
        ]
        unseen = [replace(s, slide_id=f"new-{n}") for n, s in enumerate(others, start=1)]
        draw_missing_slides(unseen, folder / "slides", folder / "truth", self.callbacks)
        predicted = predict_slides(
            [folder / "slides" / slide.file_name for slide in unseen],
            folder / "answers",
            [self.folder.out / "onnx" / EXPORTED_MODELS[0]],
            PredictionSettings(device="cpu", report=True, encoder=settings.encoder),
            callbacks=self.callbacks,
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
"""Epochs up to which starting further processes takes longer than training."""


def _list_finished_jobs(run: Path) -> list[Path]:
    return list(run.glob("*/seed_*/fold_*/card.json"))
