"""The second half: export models, and predict each slide with one not trained on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.bag import Bag
from sacmil.card import find_model_folders, read_card
from sacmil.cohorts.outlines import label_tiles
from sacmil.cohorts.splits import Fold
from sacmil.deploy.runtime import Runtime
from sacmil.errors import RunError, SacMILError
from sacmil.evaluation.localization import Localization, measure_localization
from sacmil.formats import read_bag
from sacmil.heatmap import draw_heatmap, read_truth, select_scores
from sacmil.results import (
    InstanceScores,
    ModelInfo,
    Predictions,
    Results,
    SlideResult,
    StoredPrediction,
    read_results,
    read_scores,
    write_results,
    write_scores,
)
from sacmil.results.prediction import combine_hashes
from sacmil.slides.pixels import make_thumbnail
from sacmil.slides.readers import open_slide
from sacmil.synthetic.slides import CLASSES, SyntheticSlide
from sacmil.synthetic.slides.layout import MPP
from sacmil.workflows.demo.folder import DemoFolder
from sacmil.workflows.demo.settings import EXPORTED_MODELS
from sacmil.workflows.prediction_settings import WorkflowCallbacks

_PARITY_SIZES = (1, 17, 300)
"""Sizes of bags on which an export is compared with torch: about those of the demonstration."""
_THUMBNAIL_PX = 512
_MIN_TUMOR_SHARE = 0.25
"""Minimum share of tumour for a tile to count as tumour."""


def export_missing_models(folder: DemoFolder, callbacks: WorkflowCallbacks) -> int:
    """Write the missing models as ONNX, every fold; return how many were written."""
    from sacmil.deploy.export import export_model

    missing = [name for name in EXPORTED_MODELS if not _is_exported(folder, name)]
    for done, name in enumerate(missing):
        callbacks.on_progress("exporting", done, len(missing))
        export_model(folder.out / "run" / name, folder.out / "onnx" / name, sizes=_PARITY_SIZES)
    if missing:
        callbacks.on_progress("exporting", len(missing), len(missing))
    return len(missing)


def _is_exported(folder: DemoFolder, name: str) -> bool:
    """Whether the current weights of the run are exported."""
    try:
        trained = [read_card(member).weights_sha256 for member in _list_trained(folder, name)]
        exported = [read_card(one).weights_sha256 for one in _list_exported(folder, name)]
    except (SacMILError, KeyError):
        return False
    return trained == exported


def _list_trained(folder: DemoFolder, name: str) -> list[Path]:
    return find_model_folders(folder.out / "run" / name)


def _list_exported(folder: DemoFolder, name: str) -> list[Path]:
    return find_model_folders(folder.out / "onnx" / name)


@dataclass(frozen=True, kw_only=True)
class DemoPredictor:
    """Predicts the slides with the exported models, and writes results for the viewer."""

    folder: DemoFolder
    slides: Sequence[SyntheticSlide]
    bags: Mapping[str, Path]
    folds: Sequence[Fold]
    heatmaps_per_class: int
    """Number of slides per class with heatmaps."""
    callbacks: WorkflowCallbacks

    def predict_slides(self) -> tuple[Results, int]:
        """Return the results of every slide, and how many slides were predicted now."""
        models = tuple(self._make_model_info(name) for name in EXPORTED_MODELS)
        known = self._read_existing(models)
        if known is not None:
            return known, 0
        runtimes = {name: self._load_runtimes(name) for name in EXPORTED_MODELS}
        slides = []
        for done, slide in enumerate(self.slides):
            self.callbacks.on_progress("predicting, drawing", done, len(self.slides))
            slides.append(self._predict_slide(slide, runtimes))
        self.callbacks.on_progress("predicting, drawing", len(self.slides), len(self.slides))
        results = Results(CLASSES, models, tuple(slides))
        write_results(self.folder.results, results)
        return results, len(self.bags)

    def _make_model_info(self, name: str) -> ModelInfo:
        hashes = [read_card(p).weights_sha256 for p in _list_exported(self.folder, name)]
        return ModelInfo(
            name, combine_hashes(hashes)
        )  # no ensemble: one member predicts each slide

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
        for member in _list_exported(self.folder, name):
            fold = read_card(member).training["fold"]
            runtime = Runtime(member, threads=1)
            by_slide |= dict.fromkeys(self.folds[fold].test, runtime)
        return by_slide

    def _predict_slide(
        self, slide: SyntheticSlide, runtimes: Mapping[str, Mapping[str, Runtime]]
    ) -> SlideResult:
        name = slide.slide_id
        truth = self.folder.truth / f"{name}.geojson"
        known = SlideResult(
            name,
            label=CLASSES[slide.label],
            slide=f"slides/{slide.file_name}",
            truth=f"truth/{truth.name}" if truth.is_file() else None,
        )
        if name not in self.bags:
            return known
        bag = read_bag(self.bags[name])
        predictions = (
            self._predict_model(slide, bag, model, runtimes[model][name])
            for model in EXPORTED_MODELS
        )
        return replace(
            known,
            answers=tuple(predictions),
            thumbnail=self._write_thumbnail(slide),
            mpp=MPP,
            size=slide.settings.size,
        )

    def _predict_model(
        self, slide: SyntheticSlide, bag: Bag, model: str, runtime: Runtime
    ) -> StoredPrediction:
        prediction = runtime.predict(bag)
        scores = InstanceScores.from_prediction(prediction, bag.coords, float(bag.patch_size))
        path = f"scores/{model}/{slide.slide_id}.npz"
        write_scores(self.folder.results / path, scores)
        heatmaps = {}
        if slide in self.select_illustrated_slides():
            heatmaps = self._draw_heatmap(slide, model, scores, prediction.probabilities)
        return StoredPrediction(
            model, tuple(prediction.probabilities.tolist()), None, path, heatmaps
        )

    def select_illustrated_slides(self) -> list[SyntheticSlide]:
        """Return the first slides of each class that have a bag."""
        usable = [slide for slide in self.slides if slide.slide_id in self.bags]
        labels = sorted({slide.label for slide in usable})
        each = [[slide for slide in usable if slide.label == label] for label in labels]
        return [slide for slides in each for slide in slides[: self.heatmaps_per_class]]

    def _draw_heatmap(
        self,
        slide: SyntheticSlide,
        model: str,
        scores: InstanceScores,
        probabilities: npt.NDArray[np.float64],
    ) -> dict[str, str]:
        winner = int(probabilities.argmax())
        drawn = draw_heatmap(
            self.folder.results / "heatmaps" / model,
            slide.slide_id,
            scores,
            classes=CLASSES,
            predicted=CLASSES[winner],
            slide=self.folder.slides / slide.file_name,
            truth=read_truth(self.folder.truth, slide.slide_id),
            note=f"{model}: {CLASSES[winner]} {probabilities[winner]:.2f}; "
            f"truth: {CLASSES[slide.label]}",
        )
        return {"score": drawn["overlay"].relative_to(self.folder.results).as_posix()}

    def _write_thumbnail(self, slide: SyntheticSlide) -> str:
        from PIL import Image

        path = f"thumbnails/{slide.slide_id}.jpg"
        with open_slide(self.folder.slides / slide.file_name) as opened:
            small = make_thumbnail(opened, max(opened.size) / _THUMBNAIL_PX, max_side=_THUMBNAIL_PX)
        with atomic_write(self.folder.results / path) as partial:
            Image.fromarray(small.pixels).save(partial, format="JPEG", quality=88)
        return path

    def measure_localization(self, results: Results) -> dict[str, Localization]:
        """Return the localisation of the clusters by model."""
        truth = {}
        for name, path in self.bags.items():
            bag = read_bag(path)
            outlines = read_truth(self.folder.truth, name)
            if outlines is None:
                raise RunError(
                    f"{self.folder.truth}: has no outlines of {name}; delete the slide to draw it "
                    "again"
                )
            truth[name] = label_tiles(
                bag.coords, float(bag.patch_size), outlines, min_share=_MIN_TUMOR_SHARE
            )
        return {
            model.name: measure_localization(self._read_scores(results, model.name), truth)
            for model in results.models
        }

    def _read_scores(self, results: Results, model: str) -> dict[str, npt.NDArray[np.float32]]:
        return {
            slide.slide_id: _select_predicted_scores(
                read_scores(self.folder.results / one.scores), one.probabilities
            )
            for slide in results.slides
            for one in slide.answers
            if one.model == model and one.scores
        }

    def to_predictions(self, results: Results, seed: int) -> Predictions:
        """Return the predictions of the exported models as a table of a run."""
        fold_of = {name: number for number, fold in enumerate(self.folds) for name in fold.test}
        synthetic = {slide.slide_id: slide for slide in self.slides}
        rows, probabilities = [], []
        for slide in results.slides:
            for prediction in slide.answers:
                source, fold = synthetic[slide.slide_id], fold_of[slide.slide_id]
                keys = (slide.slide_id, source.patient_id, "test", fold, seed)
                rows.append((*keys, prediction.model, source.label))
                probabilities.append(prediction.probabilities)
        return Predictions.from_rows(results.classes, rows, probabilities)


def _select_predicted_scores(
    scores: InstanceScores, probabilities: Sequence[float]
) -> npt.NDArray[np.float32]:
    predicted = CLASSES[int(np.argmax(probabilities))]
    return select_scores(scores, CLASSES, predicted=predicted).scores.scores
