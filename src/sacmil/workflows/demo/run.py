"""The whole way: draw, extract, cross-validate, export, answer, report; only what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sacmil.alone import alone_in, remove_leftovers
from sacmil.cohorts.drawn import DrawnSlide, drawn_cohort, table_of
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.cohorts.table import Cohort, write_table
from sacmil.errors import RunError
from sacmil.evaluation.comparison import compare
from sacmil.evaluation.localisation import Localisation
from sacmil.evaluation.plots import check_can_draw
from sacmil.evaluation.report import Report, write_folder
from sacmil.evaluation.summary import summarise
from sacmil.results import PREDICTIONS, Predictions, write_predictions
from sacmil.training.crossval import Resources, cross_validate
from sacmil.workflows.demo.answers import Work, export_models
from sacmil.workflows.demo.folder import DemoFolder
from sacmil.workflows.demo.material import Bags, cores, draw_slides, make_bags
from sacmil.workflows.demo.page import write_page
from sacmil.workflows.demo.settings import ANSWERING, Settings
from sacmil.workflows.evaluation import what_was_asked
from sacmil.workflows.prediction import predict_items
from sacmil.workflows.prediction_settings import Settings as PredictionSettings
from sacmil.workflows.prediction_settings import Watcher

_NEW = 2
"""Slides that nobody has labelled."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """What came of it."""

    folder: DemoFolder
    report: Report
    """Of the cross-validation."""
    located: Mapping[str, Localisation]
    """By model that was exported."""
    bags: Bags
    drawn: Sequence[DrawnSlide]
    pictured: Sequence[DrawnSlide]
    new: Mapping[str, str]
    """Slides that nobody has labelled, and what was said of them."""
    done: Mapping[str, int]
    """How much of each step was done now: nothing where all was there."""


def run_demo(out: Path, settings: Settings, watcher: Watcher | None = None) -> Demonstration:
    """Do everything that is missing in a folder, and write its page.

    Args:
        out: see demo/folder.py for what is put where.
        settings: how large.
        watcher: told as it goes on.
    """
    check_can_draw("the demonstration's report")
    folder = DemoFolder(out)
    with alone_in(out, what="demonstration"):
        remove_leftovers(out)
        folder.claim(settings)
        found = _Steps(folder, settings, watcher or Watcher()).take()
        write_page(found)
        return found


class _Steps:
    def __init__(self, folder: DemoFolder, settings: Settings, watcher: Watcher) -> None:
        self.folder, self.settings, self.watcher = folder, settings, watcher
        self.drawn = drawn_cohort(settings.slides, settings.seed, amounts=settings.amounts)
        self.done: dict[str, int] = {}

    def take(self) -> Demonstration:
        folder, drawn = self.folder, self.drawn
        self.done["slides drawn"] = draw_slides(drawn, folder.slides, folder.truth, self.watcher)
        write_table(folder.out / "table.csv", table_of(drawn))
        bags = self._bags()
        cohort = table_of(drawn).only(bags.files)
        folds = make_folds(cohort, self.settings.folds, seed=self.settings.seed)
        report = self._contest(cohort, bags, folds)
        self.done["models exported"] = export_models(folder, self.watcher)
        work = Work(
            folder=folder,
            drawn=drawn,
            bags=bags.files,
            folds=folds,
            pictures=self.settings.pictures,
            watcher=self.watcher,
        )
        results, self.done["slides answered"] = work.answer()
        said = work.predictions(results, self.settings.seed)
        write_predictions(folder.out / PREDICTIONS, said)
        return Demonstration(
            folder=folder,
            report=report,
            located=work.located(results),
            bags=bags,
            drawn=drawn,
            pictured=work.pictured(),
            new=self._new(),
            done=self.done,
        )

    def _bags(self) -> Bags:
        slides = [self.folder.slides / slide.file_name for slide in self.drawn]
        bags = make_bags(slides, self.folder.out / "cohort", self.settings, self.watcher)
        self.done["bags made"] = bags.made
        expected = {s.slide_id for s in self.drawn if s.mishap in ("no tissue", "truncated")}
        surprises = bags.failures.keys() - expected
        for slide_id in sorted(surprises):
            raise RunError(f"{slide_id}: {bags.failures[slide_id]}")
        return bags

    def _contest(self, cohort: Cohort, bags: Bags, folds: Sequence[Fold]) -> Report:
        """Every model on every fold, and what it is worth."""
        run = self.folder.out / "run"
        before = len(_finished(run))
        configs = self.settings.configs()
        at_once = min(cores(), len(configs)) if self.settings.epochs > _SHORT else 1
        contested = cross_validate(
            run,
            cohort,
            bags.files,
            folds,
            configs,
            seeds=(self.settings.seed,),
            resources=Resources(("cpu",) * at_once),
            progress=self._tell,
        )
        for part, reason in contested.failures.items():
            raise RunError(f"{part}: {reason}; type the command again to go on")
        self.done["parts trained"] = len(_finished(run)) - before
        assert contested.predictions is not None
        report = self._report(run, contested.predictions)
        write_folder(self.folder.out / "evaluation", report)
        return report

    def _tell(self, task: str, done: int, total: int, note: str = "") -> None:
        self.watcher.tell(task, done, total)

    def _report(self, run: Path, predictions: Predictions) -> Report:
        return Report(
            title="Cross-validation of the demonstration",
            predictions=predictions,
            figures=summarise(predictions),
            comparisons=compare(predictions),
            asked=what_was_asked([run]),
            data=f"{self.settings.slides} drawn slides",
        )

    def _new(self) -> dict[str, str]:
        """What the exported run says of slides it has never met, as sacmil predict says it."""
        folder, settings = self.folder.out / "new", self.settings
        others = drawn_cohort(4, settings.seed + 1, amounts=settings.amounts)[1 : 1 + _NEW]
        unseen = [replace(s, slide_id=f"new-{n}") for n, s in enumerate(others, start=1)]
        draw_slides(unseen, folder / "slides", folder / "truth", self.watcher)
        predicted = predict_items(
            [folder / "slides" / slide.file_name for slide in unseen],
            folder / "answers",
            [self.folder.out / "onnx" / ANSWERING[0]],
            PredictionSettings(device="cpu", report=True, encoder=settings.encoder),
            watcher=self.watcher,
        )
        for failure in predicted.failures:
            raise RunError(failure.reason)
        return {
            record.slide_id: f"{answer.winner(predicted.classes)} {max(answer.probabilities):.2f}"
            for record in predicted.records
            for answer in record.by(predicted.models)
        }


_SHORT = 5
"""Epochs up to which starting further processes takes longer than training."""


def _finished(run: Path) -> list[Path]:
    return list(run.glob("*/seed_*/fold_*/card.json"))
