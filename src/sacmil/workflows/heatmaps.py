"""Heatmaps of bags: a model's scores as images, GeoJSON and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil import heatmap
from sacmil.arguments import ProgressCallback, ignore_progress, list_paths, to_integer, to_path
from sacmil.atomic import exclusive
from sacmil.bag import Bag
from sacmil.cohorts.rows import parse_slide_id
from sacmil.deploy.load import load_ensemble
from sacmil.errors import ConfigError, FormatError, suggest_names
from sacmil.formats import find_bags, read_bag
from sacmil.formats._registry import list_suffixes
from sacmil.heatmap.annotations import check_can_draw
from sacmil.heatmap.canvas import SINGLE_SLIDE_SUFFIXES
from sacmil.results import InstanceScores, Prediction
from sacmil.slides.search import find_slides
from sacmil.tasks import Task
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.inputs import (
    INPUT_ERRORS,
    MODEL_PATH,
    ModelPath,
    Paths,
    check_output_folder,
    describe_error,
)

SCORE_NAMES = {"sac_mil": "L2 norm after the last block"}
"""Names of models' scores, where the paper has one."""


@dataclass
class HeatmapSummary:
    """Files written and failures."""

    written: dict[str, list[Path]] = field(default_factory=dict)
    """Files by slide."""
    failures: dict[Path, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What could not be drawn, and why."""


class _ScoredBag(NamedTuple):
    bag: Bag
    scores: InstanceScores
    prediction: Prediction


def draw_heatmaps(
    bags: Paths,
    model: ModelPath,
    out: str | Path,
    *,
    slides: str | Path | None = None,
    classes: Sequence[str] = (),
    normalization: heatmap.Normalization | None = None,
    geojson: bool = False,
    csv: bool = False,
    top: int = 8,
    truth: str | Path | None = None,
    allow_mismatch: bool = False,
    calibrated: bool = False,
    device: str = "cpu",
    on_progress: ProgressCallback = ignore_progress,
) -> HeatmapSummary:
    """Score every bag and write its heatmaps; a bad bag does not stop the others.

    Args:
        bags: files, or folders of them.
        model: a model folder, an exported model, or a run, which is the mean of its models.
        out: folder for the images.
        slides: folder of the slides; without it, maps are on white and show no tiles.
        classes: classes whose scores to draw; by default the predicted one, if scores are by class.
        normalization: of the overlay per slide: raw, minmax or rank, which is the default. Scores
            that add to a value or take from it have colours around zero and take none.
        geojson: also write tiles for QuPath.
        csv: also write a table of the tiles.
        top: number of top tiles.
        truth: annotations, a file or folder; a slide without one uses the labels in its bag.
        allow_mismatch: also draw bags whose encoder or tile size differs from the model's.
        calibrated: whether to apply the temperatures and thresholds of sacmil.calibrate.
        device: auto, cpu, cuda:0, …
        on_progress: called with (task, done, total).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import sacmil
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 4, seed=0, instances=(20, 30))
        >>> model = sacmil.create_model("abmil", in_dim=64, num_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     _ = write_synthetic_cohort(synthetic, folder)
        ...     sacmil.save_model(f"{folder}/model", model, classes=["scattered", "clustered"])
        ...     drawn = draw_heatmaps(f"{folder}/bags", f"{folder}/model", f"{folder}/out", top=0)
        >>> len(drawn.written), drawn.failures
        (4, {})
    """
    drawer = _HeatmapDrawer(
        out=check_output_folder(out),
        classes=(classes,) if isinstance(classes, str) else tuple(classes),
        normalization=normalization,
        geojson=geojson,
        csv=csv,
        top=to_integer("top", top, 0),
        truth=None if truth is None else Path(truth),
        allow_mismatch=allow_mismatch,
    )
    found = drawer.collect_bags(list_paths("bags", bags))
    drawer.load(to_path("model", model, MODEL_PATH), device, slides, calibrated=calibrated)
    return drawer.run(found, on_progress)


@dataclass(kw_only=True)
class _HeatmapDrawer:
    """Draws and writes the files of every bag; draw_heatmaps describes the settings."""

    out: Path
    classes: tuple[str, ...]
    normalization: heatmap.Normalization | None
    geojson: bool
    csv: bool
    top: int
    truth: Path | None
    allow_mismatch: bool
    summary: HeatmapSummary = field(default_factory=HeatmapSummary)

    def collect_bags(self, items: Sequence[Path]) -> list[Path]:
        check_can_draw()
        for item in items:
            if item.is_file() and item.suffix.lower() not in list_suffixes():
                raise FormatError(
                    f"{item}: is not a bag ({', '.join(list_suffixes())}); to predict a "
                    "slide and draw its heatmap, use sacmil predict"
                )
        bags = find_bags(items, exclude=self.out)
        _check_truth(self.truth, len(bags))
        return bags

    def load(
        self, model: Path, device: str, slides: str | Path | None, *, calibrated: bool
    ) -> None:
        self.slides = {} if slides is None else _slides_by_name(Path(slides))
        self.ensemble = load_ensemble(model, device=device, calibrated=calibrated)
        self.words = heatmap.ScoreWords.from_task(self.ensemble.task)
        for which in self.classes:
            if which not in (names := self.ensemble.task.score_names):
                hint = suggest_names(which, names)
                raise ConfigError(f"{self.ensemble.path}: has no class {which!r}; {hint}")
        self.requirements = InputRequirements.from_card(self.ensemble.card, str(model))

    def run(self, bags: Sequence[Path], on_progress: ProgressCallback) -> HeatmapSummary:
        summary, all_scored = self.summary, self._score_bags(bags, on_progress)
        if (first := next(all_scored, None)) is None:
            return summary
        self._check_can_show(first[1])  # a wrong call leaves no folder
        with exclusive(self.out, purpose="heatmap"):
            for path, scored in chain([first], all_scored):
                try:
                    written = [*self._draw_pictures(scored), *self._write_tables(scored)]
                    summary.written[scored.bag.slide_id] = written
                except ConfigError:  # an error of the call, not of this bag
                    raise
                except INPUT_ERRORS as error:
                    summary.failures[path] = describe_error(error)
        return summary

    def _score_bags(
        self, bags: Sequence[Path], on_progress: ProgressCallback
    ) -> Iterator[tuple[Path, _ScoredBag]]:
        """Score one bag after the other; a bag that fails is recorded and left out."""
        for done, path in enumerate(bags, start=1):
            try:
                scored = self._score_bag(path)
            except ConfigError:
                raise
            except INPUT_ERRORS as error:
                self.summary.failures[path] = describe_error(error)
            else:
                yield path, scored
            on_progress("heatmaps", done, len(bags))

    def _check_can_show(self, scored: _ScoredBag) -> None:
        """Reject a class without scores, and a normalization that the scores do not take."""
        names, predicted = self.ensemble.task.score_names, self._name_predicted(scored.prediction)
        for which in self.classes or (None,):
            shown = heatmap.select_scores(
                scored.scores, names, predicted=predicted, class_name=which
            )
            shown.choose_normalization(self.normalization, self.words)

    def _score_bag(self, path: Path) -> _ScoredBag:
        bag = read_bag(path)
        name = bag.slide_id
        if name in self.summary.written:
            raise FormatError(f"{path}: is a second bag of {name}; expected one per slide")
        wrong = self.requirements.require(bag, name, allow_mismatch=self.allow_mismatch).problems
        if wrong:
            self.summary.notes.append(f"{name}: {'; '.join(wrong)}")
        prediction = self.ensemble.predict(bag)
        scores = InstanceScores.from_prediction(prediction, bag.coords, float(bag.patch_size))
        return _ScoredBag(bag, scores, prediction)

    def _draw_pictures(self, scored: _ScoredBag) -> Iterator[Path]:
        bag, slide = scored.bag, self.slides.get(scored.bag.slide_id)
        if slide is None and self.top:
            why = "it is not in `slides`" if self.slides else "`slides` was not given"
            self.summary.notes.append(
                f"{bag.slide_id}: the slide was not found ({why}); the map is on white, without "
                "top tiles"
            )
        truth = self._load_truth(bag)
        for which in self.classes or (None,):
            pictures = heatmap.draw_heatmap(
                self.out,
                bag.slide_id,
                scored.scores,
                classes=self.ensemble.task.score_names,
                class_name=which,
                predicted=self._name_predicted(scored.prediction),
                normalization=self.normalization,
                words=self.words,
                slide=slide,
                mpp=bag.mpp,
                slide_size=bag.slide_size,
                truth=truth,
                name=self._name_score(),
                note=self._describe_prediction(scored.prediction),
                top=self.top,
            )
            yield from pictures.values()

    def _load_truth(self, bag: Bag) -> heatmap.Truth | None:
        if self.truth is None:
            return bag.labels
        found = heatmap.read_truth(self.truth, bag.slide_id, bounds_origin=bag.bounds_origin)
        if found is None and bag.labels is None:
            self.summary.notes.append(f"{bag.slide_id}: {self.truth} has no annotation of it")
        return bag.labels if found is None else found

    def _write_tables(self, scored: _ScoredBag) -> Iterator[Path]:
        """Write GeoJSON and CSV of every score, coloured by the first given or predicted class."""
        bag, classes, predicted = (
            scored.bag,
            self.ensemble.task.score_names,
            self._name_predicted(scored.prediction),
        )
        which = self.classes[0] if self.classes else None
        shown = heatmap.select_scores(scored.scores, classes, predicted=predicted, class_name=which)
        stem = heatmap.safe_file_name(bag.slide_id)
        how = shown.choose_normalization(self.normalization, self.words)
        values = heatmap.normalize_scores(shown.scores.scores, how)
        columns = _make_columns(scored.scores, classes, values, shown.class_name, how)
        common: dict[str, Any] = {"normalization": how, "measurements": columns}
        if self.geojson:
            path = self.out / f"{stem}.geojson.gz"
            known: dict[str, Any] = {"bounds_origin": bag.bounds_origin, "slide_id": bag.slide_id}
            heatmap.write_geojson(path, scored.scores, values, **known, **common)
            yield path
        if self.csv:
            path = self.out / f"{stem}.csv"
            heatmap.write_csv(path, scored.scores, values, labels=bag.labels, **common)
            yield path

    def _name_score(self) -> str:
        if len(self.ensemble.members) > 1:
            return f"mean rank of {len(self.ensemble.members)} models' scores"
        return SCORE_NAMES.get(self.ensemble.card.model, "score")

    def _describe_prediction(self, prediction: Prediction) -> str:
        """Return the model's name and its prediction for the slide."""
        task: Task = self.ensemble.task
        pairs = zip(task.value_names, prediction.values.tolist(), strict=True)
        values = task.describe(prediction).headline
        if task.are_probabilities:
            values = ", ".join(f"{each} {value:.2f}" for each, value in pairs)
        kind, name = self.ensemble.card.model, self.ensemble.name
        return f"{kind if kind == name else f'{kind} ({name})'} · {values}"

    def _name_predicted(self, prediction: Prediction) -> str:
        """Return the name of the scores that belong to the prediction."""
        task: Task = self.ensemble.task
        return task.score_names[task.describe(prediction).score_column]


def _check_truth(path: Path | None, bags: int) -> None:
    """Reject the annotation of one slide for several bags, which would all get it."""
    if path and bags > 1 and path.is_file() and path.name.endswith(SINGLE_SLIDE_SUFFIXES):
        raise ConfigError(
            f"{path}: holds the annotation of one slide, and there are {bags} bags; expected a "
            "folder of files named like the slides, or one JSON file of all"
        )


def _slides_by_name(folder: Path) -> dict[str, Path]:
    found = find_slides([folder])
    return {parse_slide_id(path.name): path for path in found} | {path.stem: path for path in found}


def _make_columns(
    scores: InstanceScores,
    classes: Sequence[str],
    values: npt.NDArray[np.float64],
    which: str | None,
    normalization: str,
) -> dict[str, npt.ArrayLike]:
    """Return the columns by name; the score of a class is named after it."""
    name = f"score {which}" if which else "score"
    columns: dict[str, npt.ArrayLike] = {name: scores.scores}
    if scores.class_scores is not None:
        by_class = zip(classes, scores.class_scores.T, strict=True)
        columns = {f"score {each}": column for each, column in by_class}
    if normalization != "raw":
        columns[f"{name} ({normalization})"] = values
    return columns
