"""Predicts slides and bags: extract, predict, draw, report; skips what is done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sacmil.arguments import ProgressCallback, ignore_progress, list_paths
from sacmil.atomic import exclusive
from sacmil.bag import Bag
from sacmil.card import anonymized_id
from sacmil.deploy.load import ENSEMBLE_NAME, LoadedModel, load_ensembles
from sacmil.errors import InputError, OptionError, RunError, SacMILError
from sacmil.limits import BAG_LIMIT_S
from sacmil.results import InstanceScores, ModelInfo, Prediction, StoredPrediction, write_scores
from sacmil.results.prediction import average_predictions, combine_hashes
from sacmil.slides.search import find_slides
from sacmil.tasks import Task
from sacmil.workflows.input_requirements import InputRequirements, extract_missing
from sacmil.workflows.inputs import (
    BagReading,
    BagSettings,
    ExtractionTracker,
    ModelPaths,
    Paths,
    PredictionInputs,
    WorkflowCallbacks,
    describe_error,
    find_inputs,
    make_printable_path,
    process_bags,
)
from sacmil.workflows.prediction_folder import (
    BagFile,
    PredictionFailure,
    PredictionFolder,
    SlidePredictions,
    make_table,
    write_tables,
)
from sacmil.workflows.slide_pictures import draw_slide_pictures

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class PredictionSummary:
    """Predictions and failures of the items."""

    task: Task
    models: tuple[ModelInfo, ...]
    records: list[SlidePredictions]
    failures: list[PredictionFailure]
    removed_reports: int = 0
    """Number of removed pages of earlier commands, which showed other predictions."""

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per slide and model."""
        import pandas

        header, *rows = make_table(self.task, self.models, self.records)
        spreads = dict.fromkeys((name for name in header if name.startswith("spread_")), float)
        frame = pandas.DataFrame(rows, columns=header).astype(spreads)
        return frame.drop(columns=["model_hash", "encoder", "seconds"])


def predict_slides(
    items: Paths,
    models: ModelPaths,
    out: str | Path,
    *,
    device: str = "auto",
    slides: str | Path | None = None,
    heatmaps: bool = True,
    report: bool = False,
    allow_mismatch: bool = False,
    slide_mpp: str | None = None,
    encoder: str | None = None,
    encoder_weights: str | Path | None = None,
    download: bool = False,
    limit_s: float = BAG_LIMIT_S,
    calibrated: bool = False,
    on_progress: ProgressCallback = ignore_progress,
    track_extraction: ExtractionTracker | None = None,
) -> PredictionSummary:
    """Predict slides and bags, draw heatmaps and write tables; what is done is not done again.

    Args:
        items: slides, bags, or folders of either; one that fails does not stop the others.
        models: model folders, exports or runs, a run is the mean of its models; so are several.
        out: folder to write; docs/how-to/predict.md lists the files.
        device: auto, cpu, cuda:0, …: for torch models and the encoder.
        slides: folder of the bags' slides, to draw heatmaps on.
        heatmaps: whether to draw heatmaps.
        report: whether to write a page per slide.
        allow_mismatch: only warn about bags that do not meet the models' requirements.
        slide_mpp: microns per pixel of the slides, or a table of them, if files do not state it.
        encoder: encoder of slides, such as onnx:FILE; by default that of the models' cards.
        encoder_weights: file of the encoder's weights.
        download: whether to download the encoder's weights.
        limit_s: seconds to read one bag.
        calibrated: whether to apply the temperatures and thresholds of sacmil.calibrate.
        on_progress: called with (task, done, total).
        track_extraction: called with the number of slides; returns a context for their progress.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import sacmil
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 4, seed=0, instances=(20, 30))
        >>> model = sacmil.create_model("abmil", in_dim=64, num_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     _ = write_synthetic_cohort(synthetic, folder)
        ...     sacmil.save_model(f"{folder}/model", model, classes=["scattered", "clustered"])
        ...     paths = f"{folder}/bags", f"{folder}/model", f"{folder}/out"
        ...     found = predict_slides(*paths, heatmaps=False)
        >>> len(found.to_frame()), found.failures
        (4, [])
    """
    if not limit_s > 0:
        raise OptionError(f"`limit_s` is {limit_s}; expected seconds above 0")
    found, folder = _find_inputs(items, Path(out)), PredictionFolder(Path(out))
    loaded = _LoadedModels.load(list_paths("models", models), device, calibrated=calibrated)
    callbacks = WorkflowCallbacks(on_progress=on_progress, track_extraction=track_extraction)
    settings = BagSettings(device, slide_mpp, encoder, encoder_weights, download, allow_mismatch)
    run = _PredictionRun(folder, loaded, settings, callbacks, limit_s)
    with exclusive(folder.out, purpose="prediction"):
        return run.run(found, slides, heatmaps=heatmaps, report=report)


def _find_inputs(items: Paths, out: Path) -> PredictionInputs:
    """Return the slides and bags; reject a folder that must not be written to."""
    paths = list_paths("items", items)
    if out.resolve() in (item.resolve() for item in paths):
        raise RunError(f"{out}: is one of the inputs; choose another `out`")
    PredictionFolder(out).check_is_prediction_folder()
    return find_inputs(paths, outside=out)


class _LoadedModels(NamedTuple):
    """The models that predict, and the bags they need."""

    ensembles: tuple[LoadedModel, ...]
    requirements: InputRequirements
    models: tuple[ModelInfo, ...]
    """Models in the tables; with several, their ensemble is last."""

    @classmethod
    def load(cls, paths: Sequence[Path], device: str, *, calibrated: bool) -> _LoadedModels:
        ensembles = load_ensembles(paths, device=device, calibrated=calibrated)
        models = [ModelInfo(one.name, one.hash, len(one.members)) for one in ensembles]
        if len(models) > 1:
            combined = combine_hashes([model.hash for model in models])
            models.append(ModelInfo(ENSEMBLE_NAME, combined, len(models)))
        return cls(ensembles, InputRequirements.from_ensembles(ensembles), tuple(models))

    @property
    def task(self) -> Task:
        task: Task = self.ensembles[0].task
        return task

    def was_trained_on(self, slide_id: str) -> bool:
        """Whether a member was trained on the slide, according to its card."""
        known = anonymized_id("slide", slide_id)
        members = (member for one in self.ensembles for member in one.members)
        return any(known in member.card.training_ids for member in members)

    def predict(self, bag: Bag) -> Iterator[tuple[ModelInfo, Prediction, float]]:
        """Yield each prediction and its seconds."""
        predictions: list[Prediction] = []
        begun = time.perf_counter()
        for model, ensemble in zip(self.models, self.ensembles, strict=False):
            started = time.perf_counter()
            predictions.append(ensemble.predict(bag))
            yield model, predictions[-1], time.perf_counter() - started
        if len(predictions) > 1:
            find_column = self.ensembles[0].find_score_column
            mean = average_predictions(predictions, find_column)
            yield self.models[-1], mean, time.perf_counter() - begun


@dataclass(frozen=True)
class _PredictionRun:
    folder: PredictionFolder
    models: _LoadedModels
    settings: BagSettings
    callbacks: WorkflowCallbacks
    limit_s: float
    failures: list[PredictionFailure] = field(default_factory=list)

    def run(
        self, found: PredictionInputs, slides: str | Path | None, *, heatmaps: bool, report: bool
    ) -> PredictionSummary:
        given = find_slides([Path(slides)]) if slides is not None and found.bags else []
        slides_to_draw = {slide.stem: slide for slide in given} | found.slides
        made = self._extract_slides(found.slides) if found.slides else {}
        records = self._predict_bags(found.bags | made, found.bags | found.slides)
        if heatmaps:
            self._write_tables(records)  # if images fill the disk, the predictions are there
            tracked = self.callbacks.track("drawing", records)
            records = [self._draw_record(one, slides_to_draw.get(one.slide_id)) for one in tracked]
        pages = [record.slide_id for record in records] if report else []
        removed = self.folder.remove_old_reports(keep=pages)
        self._write_tables(records)
        if report:
            self._write_reports(records)
        models = self.models
        return PredictionSummary(models.task, models.models, records, self.failures, removed)

    def _write_tables(self, records: Sequence[SlidePredictions]) -> None:
        models = self.models
        write_tables(self.folder, models.task, models.models, records, self.failures)

    def _add_failure(self, item: str | Path, reason: str) -> None:
        self.failures.append(PredictionFailure(make_printable_path(item), reason))

    def _extract_slides(self, slides: Mapping[str, Path]) -> dict[str, Path]:
        """Return the bags of slides that could be extracted."""
        needs = self.models.requirements
        made = extract_missing(slides, self.folder.bags, needs, self.settings, self.callbacks)
        for name, reason in made.failures.items():
            self._add_failure(slides[name], reason)
        return made.bags

    def _predict_bags(
        self, bags: Mapping[str, Path], items: Mapping[str, Path]
    ) -> list[SlidePredictions]:
        """Return the predictions of every readable bag, sorted by name."""
        current = {name: self._read_existing(name, path) for name, path in sorted(bags.items())}

        def predict_bag(name: str, reading: BagReading) -> None:
            current[name] = self._predict_bag(name, str(items[name]), bags[name], reading)

        failures = process_bags(
            {name: bags[name] for name, record in current.items() if record is None},
            predict_bag,
            task="predicting",
            limit_s=self.limit_s,
            on_progress=self.callbacks.on_progress,
        )
        for name, reason in failures.items():
            self._add_failure(items[name], reason)
        return [record for record in current.values() if record is not None]

    def _read_existing(self, name: str, path: Path) -> SlidePredictions | None:
        """Return the record of an earlier run, if of these models and this bag."""
        record, models = self.folder.read_record(name), self.models
        is_usable = (
            record is not None
            and path.is_file()
            and record.bag == BagFile.from_path(path)
            and record.classes == models.task.value_names
            and (record.task is None) == models.task.has_classes
            and (self.settings.allow_mismatch or not record.mismatches)
            and len(record.select_models(models.models)) == len(models.models)
        )
        return record if is_usable else None

    def _predict_bag(
        self, name: str, item: str, path: Path, reading: BagReading
    ) -> SlidePredictions:
        bag = reading.bag
        _check_is_utf8(path)
        file = BagFile.from_path(path)
        wrong, odd = self._check_bag(name, path, bag)
        record = SlidePredictions(
            slide_id=name,
            item=item,
            bag=file,
            classes=self.models.task.value_names,
            task=None if self.models.task.has_classes else self.models.task.card,
            instances=len(bag),
            encoder=bag.encoder.name if bag.encoder else None,
            patch_um=None if bag.patch_size_um is None else float(bag.patch_size_um),
            mpp=None if bag.mpp is None else float(bag.mpp),
            size=_to_int_pair(bag.slide_size),
            bounds_origin=_to_int_pair(bag.bounds_origin),
            mismatches=tuple(wrong),
            warnings=(*reading.warnings, *odd),
        )
        newer = [self._save_prediction(name, bag, *one) for one in self.models.predict(bag)]
        older = self.folder.read_record(name)
        if older is not None and (older.bag, older.classes) == (file, record.classes):
            record = record.with_answers(older.answers)
        record = record.with_answers(newer)
        self.folder.write_record(record)
        return record

    def _check_bag(self, name: str, path: Path, bag: Bag) -> tuple[list[str], list[str]]:
        """Return how a bag differs from the models' bags, and all warnings about it."""
        other = f"it holds the slide {bag.slide_id!r}, the file is called {name!r}"
        wrong, unknown = self.models.requirements.require(
            bag,
            path,
            allow_mismatch=self.settings.allow_mismatch,
            others=[] if bag.slide_id == name else [other],
        )
        odd = list(wrong)
        if self.models.was_trained_on(name):
            odd.append(
                "a model was trained on this slide; its prediction is no test of how it performs "
                "on new slides"
            )
        if unknown:
            odd.append(
                f"could not be checked for the model's {' and '.join(unknown)}, which the bag or "
                "the card does not state"
            )
        return wrong, [f"{path}: {text}" for text in odd]

    def _save_prediction(
        self, name: str, bag: Bag, model: ModelInfo, prediction: Prediction, seconds: float
    ) -> StoredPrediction:
        path = self.folder.scores_path(model.name, name)
        scores = InstanceScores.from_prediction(prediction, bag.coords, float(bag.patch_size))
        write_scores(self.folder.out / path, scores)
        return StoredPrediction.from_prediction(
            prediction, model, scores=path, seconds=round(seconds, 6)
        )

    def _draw_record(self, record: SlidePredictions, file: Path | None) -> SlidePredictions:
        """Return the record with its heatmaps; add a warning if they cannot be drawn."""
        slide = None if file is None else str(file.resolve())
        wanted = record.select_models(self.models.models)
        if record.slide == slide and all(one.pictures for one in wanted):
            return record
        try:
            drawn = draw_slide_pictures(self.folder, record, wanted, slide, self.models.task)
        except SacMILError as error:
            return replace(record, warnings=(*record.warnings, f"no heatmap: {error}"))
        except OSError as error:  # such as a full disk, which is no fault of this slide
            self._add_failure(record.item, f"no heatmap: {describe_error(error)}")
            return record
        self.folder.write_record(drawn)
        return drawn

    def _write_reports(self, records: Sequence[SlidePredictions]) -> None:
        from sacmil.workflows.slide_report import ModelSummary, write_slide_report

        facts = [ModelSummary.from_ensemble(one) for one in self.models.ensembles]
        for record in self.callbacks.track("writing pages", records):
            write_slide_report(self.folder, record, self.models.models, facts, self.models.task)


def _check_is_utf8(path: Path) -> None:
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path}: its name is not UTF-8, which tables need; rename it") from None


def _to_int_pair(values: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return Python numbers, which JSON needs; a file may give numpy's."""
    return None if values is None else (int(values[0]), int(values[1]))
