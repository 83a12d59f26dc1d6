"""Runs the demonstration: draw, extract, cross-validate, export, predict, report.

::

    OUT/
    ├── index.html                 the report
    ├── predictions.csv            predictions of exported models; sacmil evaluate reads it
    ├── table.csv                  slides, patients, labels; sacmil crossval reads it
    ├── settings.json              settings; other settings need another folder
    ├── cohort/                    tissue, tiles, bags: see extraction/slide_request.py
    ├── run/                       the cross-validation: see results/__init__.py
    ├── evaluation/                tables and plots of it, report.html
    ├── onnx/<model>/part_<fold>/  exported models
    ├── new/                       unlabelled slides, and the output of sacmil predict
    └── results/                   for sacmil view: see results/results_folder.py
        ├── slides/<slide>.tif
        └── truth/<slide>.geojson
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write, exclusive
from sacmil.bag import Bag
from sacmil.card import find_model_folders, read_card
from sacmil.cohorts.cohort import Cohort, write_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.outlines import label_tiles
from sacmil.cohorts.splits import make_folds
from sacmil.deploy.runtime import Runtime
from sacmil.encoders import load_encoder
from sacmil.environment import count_cores
from sacmil.errors import RunError, SacMILError
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.html_page import render_page
from sacmil.evaluation.localization import Localization, measure_localization
from sacmil.evaluation.plots import check_matplotlib
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.evaluation.summary import summarize
from sacmil.extraction import ExtractionSettings, extract_slides
from sacmil.formats import read_bag
from sacmil.heatmap import draw_heatmap, read_truth, select_scores
from sacmil.parallel import WorkerPool
from sacmil.results import (
    PREDICTIONS_FILE,
    InstanceScores,
    ModelInfo,
    Predictions,
    Results,
    SlideResult,
    StoredPrediction,
    read_results,
    read_scores,
    write_predictions,
    write_results,
    write_scores,
)
from sacmil.results.prediction import combine_hashes
from sacmil.slides.readers import open_slide
from sacmil.slides.tiling import TileSpec
from sacmil.synthetic.slides import (
    CLASSES,
    LayoutSettings,
    SyntheticSlide,
    make_cohort,
    make_slide_cohort,
    write_slide,
)
from sacmil.synthetic.slides.layout import MPP
from sacmil.tasks import Classification
from sacmil.training.config import DEFAULT_MODEL, TrainingConfig
from sacmil.training.train import cross_validate
from sacmil.workflows.inputs import WorkflowCallbacks
from sacmil.workflows.predict import predict_slides
from sacmil.workflows.runs import read_run_settings
from sacmil.workflows.slide_pictures import write_thumbnail

TASK = Classification(CLASSES)
EXPORTED_MODELS = (DEFAULT_MODEL, "abmil")
"""Models that are exported, drawn and shown in the viewer."""

_QUICK_LAYOUT = LayoutSettings(
    size=(1120, 1120),
    tissue_radius=520,
    clusters=(3, 3),
    cluster_radius=(70, 80),
    glands=(1, 1),
    gland_radius=50,
    fat_radius=80,
    fat_cell=26,
    stroma_cells=(250, 350),
    lymphocytes=(60, 100),
)
_MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT_MODEL: {},
    "transmil": {"dim": 64, "heads": 4},
    "abmil": {"hidden": 64, "attention_dim": 32},
    "mean_pool": {"hidden": 64},
}
_NUM_NEW_SLIDES = 2
"""Number of unlabelled slides."""
_DRAWING_LIMIT_S = 600.0
"""Seconds to draw one slide."""
MAX_SERIAL_EPOCHS = 5
"""Maximum number of epochs for which starting processes takes longer than training."""
_PARITY_SIZES = (1, 17, 300)
"""Sizes of bags on which an export is compared with torch: about those of the demonstration."""
_THUMBNAIL_PX = 512
_MIN_TUMOR_SHARE = 0.25
"""Minimum share of tumour for a tile to count as tumour."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of the demonstration."""

    slides: int = 80
    """Slides with tissue; two more fail on purpose."""
    folds: int = 3
    epochs: int = 16
    seed: int = 1
    """Of slides, folds and weights. Not 0, because models were chosen on slides of seed 0."""
    pictures: int = 3
    """Number of slides per class with heatmaps: the first ones, not the best."""
    amounts: LayoutSettings = field(default_factory=LayoutSettings)
    tiles: TileSpec = field(default_factory=lambda: TileSpec(mpp=0.5, patch_size=224))
    encoder: str = "lite0"

    @classmethod
    def make_quick(cls, **changed: Any) -> DemoSettings:
        """Return a small demonstration: every step, but its metrics mean nothing."""
        small: dict[str, Any] = {"slides": 8, "folds": 2, "epochs": 2, "pictures": 1}
        return cls(**{**small, "amounts": _QUICK_LAYOUT, **changed})

    def make_configs(self) -> dict[str, TrainingConfig]:
        """Return our model with its defaults and the others small, all trained in the same way."""
        training = {"epochs": self.epochs}
        return {
            name: TrainingConfig(model=name, options=options, training=training, seed=self.seed)
            for name, options in _MODEL_OPTIONS.items()
        }

    def to_json(self) -> str:
        """Return the settings as JSON, to recognise a folder of the same demonstration."""
        return json.dumps(asdict(self) | {"models": _MODEL_OPTIONS}, indent=1) + "\n"


class DemoFolder:
    """The paths of one demonstration; the top of this file lists all of them.

    Args:
        out: the folder.
    """

    def __init__(self, out: Path) -> None:
        self.out, self.page, self.results = out, out / "index.html", out / "results"
        self.slides, self.truth = self.results / "slides", self.results / "truth"


def claim_folder(out: Path, settings: str) -> None:
    """Reserve the folder for these settings; reject a folder with other contents."""
    stored = out / "settings.json"
    if stored.is_file():
        if stored.read_text(encoding="utf-8", errors="replace") != settings:
            raise RunError(
                f"{out}: holds a demonstration with other settings (see {stored.name}); "
                "choose another `out`, or remove that folder"
            )
        return
    foreign = sorted(file.name for file in out.glob("*") if file.name[0] != ".")
    if foreign:
        raise RunError(
            f"{out}: holds {foreign[0]} and is not a demonstration; choose another `out`"
        )
    with atomic_write(stored) as partial:
        partial.write_text(settings, encoding="utf-8")


class DemoBags(NamedTuple):
    """Bags of the slides, and slides without one."""

    files: dict[str, Path]
    """By slide."""
    failures: dict[str, str]
    """Reason by slide, for slides without a bag."""
    tiles: int


def run_demo(
    out: Path, settings: DemoSettings, callbacks: WorkflowCallbacks | None = None
) -> DemoRun:
    """Do everything that is missing in a folder, and write its page.

    Args:
        out: the top of this file lists its contents.
        settings: size and seed.
        callbacks: progress.
    """
    check_matplotlib("the demonstration's report")
    folder = DemoFolder(out)
    with exclusive(out, purpose="demonstration"):
        claim_folder(out, settings.to_json())
        demo = DemoRun(folder, settings, callbacks or WorkflowCallbacks())
        demo.run()
        write_page(demo)
        return demo


class DemoRun:
    """A demonstration, and its results once it has run.

    Args:
        folder: to write to.
        settings: size and seed.
        callbacks: progress.
    """

    def __init__(
        self, folder: DemoFolder, settings: DemoSettings, callbacks: WorkflowCallbacks
    ) -> None:
        self.folder, self.settings, self.callbacks = folder, settings, callbacks
        self.slides = make_slide_cohort(settings.slides, settings.seed, settings=settings.amounts)
        self.steps_done: dict[str, int] = {}
        """Amount of each step done by this run; 0 if everything existed."""

    def run(self) -> None:
        """Do every step; what exists is not done again."""
        folder, slides, steps = self.folder, self.slides, self.steps_done
        steps["slides drawn"] = self._draw_slides(slides, folder.slides, folder.truth)
        write_cohort(folder.out / "table.csv", make_cohort(slides))
        self.bags = self._extract_bags()
        cohort = make_cohort(slides).restrict_to(self.bags.files)
        self.folds = make_folds(cohort, self.settings.folds, seed=self.settings.seed)
        self.report = self._cross_validate(cohort)
        steps["models exported"] = self._export_models()
        self.illustrated_slides = self._select_illustrated_slides()
        results, steps["slides predicted"] = self._predict_slides()
        write_predictions(folder.out / PREDICTIONS_FILE, self._to_predictions(results))
        self.localization = self._measure_localization(results)
        self.new_predictions = self._predict_new_slides()

    def _draw_slides(self, cohort: Sequence[SyntheticSlide], slides: Path, truth: Path) -> int:
        """Draw the missing slides and annotations in parallel; return how many were drawn."""
        missing = [slide for slide in cohort if not (slides / slide.file_name).is_file()]
        if not missing:
            return 0
        limit_s = _DRAWING_LIMIT_S
        with WorkerPool(min(count_cores(), len(missing))) as workers:
            for slide in missing:
                workers.submit(slide.slide_id, write_slide, slide, slides, truth, limit_s=limit_s)
            for _ in self.callbacks.track("drawing slides", missing):
                outcome = workers.next_outcome()
                if outcome is not None and outcome.failure is not None:
                    raise RunError(f"drawing {outcome.key} failed: {outcome.failure}")
        return len(missing)

    def _extract_bags(self) -> DemoBags:
        """Extract the slides; only those with artefacts may fail."""
        out, settings = self.folder.out / "cohort", self.settings
        before = set(out.glob("*/features_*/*.h5"))
        encoders = [load_encoder(settings.encoder)]
        chosen = ExtractionSettings(tiles=settings.tiles)
        slides = [self.folder.slides / slide.file_name for slide in self.slides]
        with self.callbacks.show_extraction(len(slides)) as progress:
            rows = extract_slides(
                slides, out, encoders=encoders, settings=chosen, progress=progress
            )
        done = [row for row in rows if row.status == "done"]
        files = {row.slide_id: out / row.bag for row in done}
        failures = {row.slide_id: row.reason for row in rows if row.status != "done"}
        expected = {s.slide_id for s in self.slides if s.artefact in ("no tissue", "truncated")}
        for slide_id in sorted(failures.keys() - expected):
            raise RunError(f"{slide_id}: {failures[slide_id]}")
        self.steps_done["bags made"] = len(set(files.values()) - before)
        return DemoBags(files, failures, sum(int(row.tiles or 0) for row in done))

    def _cross_validate(self, cohort: Cohort) -> Report:
        """Cross-validate every model and write the report."""
        run, settings = self.folder.out / "run", self.settings
        before = len(_list_finished_jobs(run))
        configs = settings.make_configs()
        parallel = settings.epochs > MAX_SERIAL_EPOCHS
        workers = min(count_cores(), len(configs)) if parallel else 1
        validated = cross_validate(
            Dataset(cohort, self.bags.files),
            configs,
            out=run,
            folds=self.folds,
            seeds=(settings.seed,),
            devices=("cpu",) * workers,
            on_progress=self.callbacks.on_progress,
        )
        for job, reason in validated.failures.items():
            raise RunError(f"{job}: {reason}; run the command again to retry")
        self.steps_done["models trained"] = len(_list_finished_jobs(run)) - before
        report = Report(
            title="Cross-validation of the demonstration",
            predictions=validated.predictions,
            estimates=summarize(validated.predictions),
            comparisons=compare_models(validated.predictions),
            settings=read_run_settings([run]),
            data=f"{settings.slides} synthetic slides",
        )
        write_report_folder(self.folder.out / "evaluation", report)
        return report

    def _export_models(self) -> int:
        """Write the missing models as ONNX, every fold; return how many were written."""
        from sacmil.deploy.export import export_model

        missing = [name for name in EXPORTED_MODELS if not self._is_exported(name)]
        for name in self.callbacks.track("exporting", missing):
            run, target = self.folder.out / "run" / name, self.folder.out / "onnx" / name
            export_model(run, target, sizes=_PARITY_SIZES)
        return len(missing)

    def _is_exported(self, name: str) -> bool:
        """Whether the current weights of the run are exported."""
        try:
            trained = _list_hashes(self.folder.out / "run" / name)
            return trained == _list_hashes(self.folder.out / "onnx" / name)
        except (SacMILError, KeyError):
            return False

    def _select_illustrated_slides(self) -> list[SyntheticSlide]:
        """Return the first slides of each class that have a bag."""
        usable = [slide for slide in self.slides if slide.slide_id in self.bags.files]
        labels = sorted({slide.label for slide in usable})
        each = [[slide for slide in usable if slide.label == label] for label in labels]
        return [slide for slides in each for slide in slides[: self.settings.pictures]]

    def _predict_new_slides(self) -> dict[str, str]:
        """Predict new slides with the exported run, as sacmil predict does."""
        folder, settings = self.folder.out / "new", self.settings
        others = make_slide_cohort(4, settings.seed + 1, settings=settings.amounts)
        unseen = [
            replace(slide, slide_id=f"new-{number}")
            for number, slide in enumerate(others[1 : 1 + _NUM_NEW_SLIDES], start=1)
        ]
        self._draw_slides(unseen, folder / "slides", folder / "truth")
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
        return {
            record.slide_id: predicted.task.describe(one).headline
            for record in predicted.records
            for one in record.select_models(predicted.models)
        }

    def _predict_slides(self) -> tuple[Results, int]:
        """Predict each slide with exported models not trained on it; write the viewer's results.

        Returns:
            The results, and how many slides were predicted now.
        """
        models = tuple(
            # no ensemble: one member predicts each slide
            ModelInfo(name, combine_hashes(_list_hashes(self.folder.out / "onnx" / name)))
            for name in EXPORTED_MODELS
        )
        known = self._read_existing(models)
        if known is not None:
            return known, 0
        runtimes = {name: self._load_runtimes(name) for name in EXPORTED_MODELS}
        tracked = self.callbacks.track("predicting, drawing", self.slides)
        slides = tuple(self._predict_slide(slide, runtimes) for slide in tracked)
        results = Results(CLASSES, models, slides)
        write_results(self.folder.results, results)
        return results, len(self.bags.files)

    def _read_existing(self, models: tuple[ModelInfo, ...]) -> Results | None:
        """Return the results of an earlier run of these models; results.json is written last."""
        try:
            found = read_results(self.folder.results)
        except RunError:
            return None
        same = [s.slide_id for s in found.slides] == [s.slide_id for s in self.slides]
        return found if same and found.models == models else None

    def _load_runtimes(self, name: str) -> dict[str, Runtime]:
        """Return by slide the exported model that was tested on it."""
        by_slide: dict[str, Runtime] = {}
        for member in find_model_folders(self.folder.out / "onnx" / name):
            fold = read_card(member).training["fold"]
            by_slide |= dict.fromkeys(self.folds[fold].test, Runtime(member, threads=1))
        return by_slide

    def _predict_slide(
        self, slide: SyntheticSlide, runtimes: Mapping[str, Mapping[str, Runtime]]
    ) -> SlideResult:
        name, root = slide.slide_id, self.folder.results
        truth, thumbnail = f"truth/{name}.geojson", f"thumbnails/{name}.jpg"
        known = SlideResult(
            name,
            label=CLASSES[slide.label],
            slide=f"slides/{slide.file_name}",
            truth=truth if (root / truth).is_file() else None,
        )
        if name not in self.bags.files:
            return known
        bag = read_bag(self.bags.files[name])
        predictions = tuple(
            self._predict_model(slide, bag, model, by_slide[name])
            for model, by_slide in runtimes.items()
        )
        with open_slide(self.folder.slides / slide.file_name) as opened:
            write_thumbnail(root / thumbnail, opened, _THUMBNAIL_PX)
        size = slide.settings.size
        return replace(known, answers=predictions, thumbnail=thumbnail, mpp=MPP, size=size)

    def _predict_model(
        self, slide: SyntheticSlide, bag: Bag, model: str, runtime: Runtime
    ) -> StoredPrediction:
        prediction = runtime.predict(bag)
        scores = InstanceScores.from_prediction(prediction, bag.coords, float(bag.patch_size))
        path = f"scores/{model}/{slide.slide_id}.npz"
        write_scores(self.folder.results / path, scores)
        probabilities = tuple(prediction.probabilities.tolist())
        drawn = self._draw_heatmap(slide, model, scores, probabilities)
        return StoredPrediction(model, probabilities, None, path, drawn)

    def _draw_heatmap(
        self,
        slide: SyntheticSlide,
        model: str,
        scores: InstanceScores,
        probabilities: Sequence[float],
    ) -> dict[str, str]:
        if slide not in self.illustrated_slides:
            return {}
        winner, truth = CLASSES[int(np.argmax(probabilities))], CLASSES[slide.label]
        drawn = draw_heatmap(
            self.folder.results / "heatmaps" / model,
            slide.slide_id,
            scores,
            classes=CLASSES,
            predicted=winner,
            slide=self.folder.slides / slide.file_name,
            truth=read_truth(self.folder.truth, slide.slide_id),
            note=f"{model}: {winner} {max(probabilities):.2f}; truth: {truth}",
        )
        return {"score": drawn["overlay"].relative_to(self.folder.results).as_posix()}

    def _measure_localization(self, results: Results) -> dict[str, Localization]:
        """Return the localisation of the clusters by model."""
        truth = {name: self._label_tiles(name, path) for name, path in self.bags.files.items()}
        return {
            model.name: measure_localization(self._read_scores(results, model.name), truth)
            for model in results.models
        }

    def _label_tiles(self, name: str, path: Path) -> npt.NDArray[np.int64]:
        outlines = read_truth(self.folder.truth, name)
        if outlines is None:
            raise RunError(
                f"{self.folder.truth}: has no outlines of {name}; delete the slide to draw it again"
            )
        bag = read_bag(path)
        size = float(bag.patch_size)
        return label_tiles(bag.coords, size, outlines, min_share=_MIN_TUMOR_SHARE)

    def _read_scores(self, results: Results, model: str) -> dict[str, npt.NDArray[np.float32]]:
        """Return the scores for the predicted class, by slide."""
        found = {}
        for slide in results.slides:
            for one in slide.answers:
                if one.model == model and one.scores:
                    scores = read_scores(self.folder.results / one.scores)
                    predicted = TASK.describe(one).predicted
                    shown = select_scores(scores, CLASSES, predicted=predicted)
                    found[slide.slide_id] = shown.scores.scores
        return found

    def _to_predictions(self, results: Results) -> Predictions:
        """Return the predictions of the exported models as a table of a run."""
        fold_of = {name: number for number, fold in enumerate(self.folds) for name in fold.test}
        synthetic = {slide.slide_id: slide for slide in self.slides}
        rows, probabilities = [], []
        for slide in results.slides:
            for prediction in slide.answers:
                source, fold = synthetic[slide.slide_id], fold_of[slide.slide_id]
                keys = (slide.slide_id, source.patient_id, "test", fold, self.settings.seed)
                rows.append((*keys, prediction.model, source.label))
                probabilities.append(prediction.values)
        return Predictions.from_rows(results.classes, rows, probabilities)


def _list_finished_jobs(run: Path) -> list[Path]:
    return list(run.glob("*/seed_*/fold_*/card.json"))


def _list_hashes(models: Path) -> list[str]:
    return [read_card(member).weights_sha256 for member in find_model_folders(models)]


def write_page(result: DemoRun) -> None:
    """Write index.html atomically."""
    first_slides = {slide.label: slide for slide in reversed(result.illustrated_slides)}
    page = render_page(
        "demo.html",
        title="Where, not how many",
        result=result,
        classes=CLASSES,
        exported_models=EXPORTED_MODELS,
        first_slides=[slide for _, slide in sorted(first_slides.items())],
        marked=", ".join(s.slide_id for s in result.slides if s.artefact == "pen mark"),
    )
    with atomic_write(result.folder.page) as partial:
        partial.write_text(page, encoding="utf-8")
