"""The second half: models are exported, and each slide is answered by one that has not seen it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sacmil.atomic import whole_file
from sacmil.bag import Bag
from sacmil.card import joint_hash, model_folders, read_card
from sacmil.cohorts.drawn import CLASSES, DrawnSlide
from sacmil.cohorts.drawn.layout import MPP
from sacmil.cohorts.outlines import label_tiles
from sacmil.cohorts.splits import Fold
from sacmil.deploy.runtime import Runtime
from sacmil.errors import RunError, SacMILError
from sacmil.evaluation.localisation import Localisation, localisation
from sacmil.formats import read_bag
from sacmil.heatmap import draw_heatmap, read_truth, select_scores
from sacmil.results import (
    Answer,
    Model,
    Predictions,
    Results,
    Scores,
    SlideResult,
    read_results,
    read_scores,
    write_results,
    write_scores,
)
from sacmil.slides.readers import open_slide
from sacmil.slides.thumbnail import thumbnail
from sacmil.workflows.demo.folder import DemoFolder
from sacmil.workflows.demo.settings import ANSWERING
from sacmil.workflows.prediction_settings import Watcher

_SIZES = (1, 17, 300)
"""Bags on which an export is compared with torch: about as large as those it will answer."""
_THUMBNAIL_PX = 512
_LEAST_SHARE = 0.25
"""Of a tile that must be tumour for the tile to count as tumour."""


def export_models(folder: DemoFolder, watcher: Watcher) -> int:
    """Write the answering models as ONNX, every fold; how many were not there yet."""
    from sacmil.deploy.export import export_model

    missing = [name for name in ANSWERING if not _is_exported(folder, name)]
    for done, name in enumerate(missing):
        watcher.tell("exporting", done, len(missing))
        export_model(folder.out / "run" / name, folder.out / "onnx" / name, sizes=_SIZES)
    if missing:
        watcher.tell("exporting", len(missing), len(missing))
    return len(missing)


def _is_exported(folder: DemoFolder, name: str) -> bool:
    """Whether the very weights of the run have been."""
    try:
        trained = [read_card(part)["weights_sha256"] for part in _trained(folder, name)]
        exported = [read_card(part)["weights_sha256"] for part in _exported(folder, name)]
    except (SacMILError, KeyError):
        return False
    return trained == exported


def _trained(folder: DemoFolder, name: str) -> list[Path]:
    return model_folders(folder.out / "run" / name)


def _exported(folder: DemoFolder, name: str) -> list[Path]:
    count = len(_trained(folder, name))
    return [folder.out / "onnx" / name / f"part_{number}" for number in range(count)]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be answered, and where."""

    folder: DemoFolder
    drawn: Sequence[DrawnSlide]
    bags: Mapping[str, Path]
    folds: Sequence[Fold]
    pictures: int
    """Heatmaps of so many slides of each class."""
    watcher: Watcher

    def answer(self) -> tuple[Results, int]:
        """What is said of every slide, and how many slides it was said of now."""
        models = tuple(self._model(name) for name in ANSWERING)
        known = self._known(models)
        if known is not None:
            return known, 0
        runtimes = {name: self._runtimes(name) for name in ANSWERING}
        slides = []
        for done, slide in enumerate(self.drawn):
            self.watcher.tell("answering, drawing", done, len(self.drawn))
            slides.append(self._slide(slide, runtimes))
        self.watcher.tell("answering, drawing", len(self.drawn), len(self.drawn))
        results = Results(CLASSES, models, tuple(slides))
        write_results(self.folder.results, results)
        return results, len(self.bags)

    def _model(self, name: str) -> Model:
        hashes = [str(read_card(p)["weights_sha256"]) for p in _exported(self.folder, name)]
        return Model(name, joint_hash(hashes))  # no ensemble: one of them answers a slide

    def _known(self, models: tuple[Model, ...]) -> Results | None:
        """What was written last, for results.json is, if these models said it."""
        try:
            found = read_results(self.folder.results)
        except RunError:
            return None
        same = [s.slide_id for s in found.slides] == [s.slide_id for s in self.drawn]
        return found if same and found.models == models else None

    def _runtimes(self, name: str) -> dict[str, Runtime]:
        """By slide, the part that was tested on it."""
        by_slide: dict[str, Runtime] = {}
        for part in _exported(self.folder, name):
            fold = read_card(part)["notes"]["training"]["fold"]
            runtime = Runtime(part, threads=1)
            by_slide |= dict.fromkeys(self.folds[fold].test, runtime)
        return by_slide

    def _slide(
        self, slide: DrawnSlide, runtimes: Mapping[str, Mapping[str, Runtime]]
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
        answers = (self._answer(slide, bag, model, runtimes[model][name]) for model in ANSWERING)
        return replace(
            known,
            answers=tuple(answers),
            thumbnail=self._thumbnail(slide),
            mpp=MPP,
            size=slide.amounts.size,
        )

    def _answer(self, slide: DrawnSlide, bag: Bag, model: str, runtime: Runtime) -> Answer:
        said = runtime.predict(bag)
        size = float(bag.patch_size)
        scores = Scores(bag.coords, size, said.scores, said.class_scores, said.score_class)
        path = f"scores/{model}/{slide.slide_id}.npz"
        write_scores(self.folder.results / path, scores)
        heatmaps = {}
        if slide in self.pictured():
            heatmaps = self._heatmap(slide, model, scores, said.probabilities)
        return Answer(model, tuple(said.probabilities.tolist()), None, path, heatmaps)

    def pictured(self) -> list[DrawnSlide]:
        """The first slides of each class that could be answered."""
        usable = [slide for slide in self.drawn if slide.slide_id in self.bags]
        labels = sorted({slide.label for slide in usable})
        each = [[slide for slide in usable if slide.label == label] for label in labels]
        return [slide for slides in each for slide in slides[: self.pictures]]

    def _heatmap(
        self,
        slide: DrawnSlide,
        model: str,
        scores: Scores,
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

    def _thumbnail(self, slide: DrawnSlide) -> str:
        from PIL import Image

        path = f"thumbnails/{slide.slide_id}.jpg"
        with open_slide(self.folder.slides / slide.file_name) as opened:
            small = thumbnail(opened, max(opened.size) / _THUMBNAIL_PX, max_side=_THUMBNAIL_PX)
        with whole_file(self.folder.results / path) as partial:
            Image.fromarray(small.pixels).save(partial, format="JPEG", quality=88)
        return path

    def located(self, results: Results) -> dict[str, Localisation]:
        """By model, whether its scores are high where the nests are."""
        truth = {}
        for name, path in self.bags.items():
            bag = read_bag(path)
            outlines = read_truth(self.folder.truth, name)
            if outlines is None:
                raise RunError(f"{self.folder.truth}: has no outlines of {name}; draw it again")
            truth[name] = label_tiles(
                bag.coords, float(bag.patch_size), outlines, least_share=_LEAST_SHARE
            )
        return {
            model.name: localisation(self._scores(results, model.name), truth)
            for model in results.models
        }

    def _scores(self, results: Results, model: str) -> dict[str, npt.NDArray[np.float32]]:
        return {
            slide.slide_id: _predicted_scores(
                read_scores(self.folder.results / answer.scores), answer.probabilities
            )
            for slide in results.slides
            for answer in slide.answers
            if answer.model == model and answer.scores
        }

    def predictions(self, results: Results, seed: int) -> Predictions:
        """What the exported models said, as a run has it."""
        fold_of = {name: number for number, fold in enumerate(self.folds) for name in fold.test}
        drawn_as = {slide.slide_id: slide for slide in self.drawn}
        rows, given = [], []
        for slide in results.slides:
            for answer in slide.answers:
                drawn, fold = drawn_as[slide.slide_id], fold_of[slide.slide_id]
                keys = (slide.slide_id, drawn.patient_id, "test", fold, seed)
                rows.append((*keys, answer.model, drawn.label))
                given.append(answer.probabilities)
        return Predictions.of(results.classes, rows, given)


def _predicted_scores(scores: Scores, probabilities: Sequence[float]) -> npt.NDArray[np.float32]:
    predicted = CLASSES[int(np.argmax(probabilities))]
    return select_scores(scores, CLASSES, predicted=predicted).scores.scores
