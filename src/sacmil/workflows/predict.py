"""Predicts slides and bags: extract, predict, draw, report; skips what is done."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.arguments import list_paths
from sacmil.atomic import exclusive, remove_partial_files
from sacmil.bag import Bag
from sacmil.card import anonymized_id
from sacmil.deploy.load import ENSEMBLE_NAME, LoadedModel, load_ensembles
from sacmil.errors import InputError, OptionError, RunError, SacMILError
from sacmil.limits import BAG_LIMIT_S
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results import InstanceScores, ModelInfo, Prediction, StoredPrediction, write_scores
from sacmil.results.prediction import PROBABILITY_PREFIX, average_predictions, combine_hashes
from sacmil.slides.search import find_slides
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.inputs import (
    INPUT_ERRORS,
    BagReading,
    ModelPaths,
    Paths,
    describe_error,
    find_inputs,
    list_model_paths,
    make_printable_path,
    prefetch_bags,
)
from sacmil.workflows.prediction_folder import (
    BagFile,
    PredictionFailure,
    PredictionFolder,
    SlidePredictions,
    write_tables,
)
from sacmil.workflows.prediction_settings import (
    ExtractionTracker,
    PredictionSettings,
    WorkflowCallbacks,
)
from sacmil.workflows.slide_pictures import draw_slide_pictures

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class PredictionSummary:
    """Predictions and failures of the items."""

    classes: tuple[str, ...]
    models: tuple[ModelInfo, ...]
    records: list[SlidePredictions]
    failures: list[PredictionFailure]
    removed_reports: int = 0
    """Number of removed pages of earlier commands, which showed other predictions."""

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per slide and model."""
        import pandas

        no_spread = [math.nan] * len(self.classes)
        rows = [
            {
                "slide_id": record.slide_id,
                "model": one.model,
                "predicted": one.find_predicted_class(self.classes),
                **{
                    PROBABILITY_PREFIX + name: p
                    for name, p in zip(self.classes, one.probabilities, strict=True)
                },
                **{
                    f"spread_{name}": value
                    for name, value in zip(self.classes, one.spread or no_spread, strict=True)
                },
            }
            for record in self.records
            for one in record.select_models(self.models)
        ]
        return pandas.DataFrame(rows)


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
    on_progress: ProgressCallback = ignore_progress,
    track_extraction: ExtractionTracker | None = None,
) -> PredictionSummary:
    """Predict slides and bags, draw heatmaps and write tables; what is done is not done again.

    An item that fails does not stop the others. docs/predict.md lists the files.

    Args:
        items: slides, bags, or folders of either.
        models: model folders, exported models, or runs, each the mean of its models. Of several,
            the mean is predicted too.
        out: folder to write.
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
        on_progress: called with (task, done, total).
        track_extraction: called with the number of slides; returns a context that is given the
            progress of extraction.

    Returns:
        The predictions by slide, and the failures.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import sacmil
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 4, seed=0, instances=(20, 30))
        >>> model = sacmil.create_model("abmil", in_dim=64, num_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     _ = write_synthetic_cohort(synthetic, folder)
        ...     sacmil.save_model(f"{folder}/model", model, classes=["scattered", "clustered"])
        ...     found = predict_slides(
        ...         f"{folder}/bags", f"{folder}/model", f"{folder}/out", heatmaps=False
        ...     )
        >>> len(found.to_frame()), found.failures
        (4, [])
    """
    if not limit_s > 0:
        raise OptionError(f"`limit_s` is {limit_s}; expected seconds above 0")
    settings = PredictionSettings(
        device=device,
        slides=None if slides is None else Path(slides),
        heatmaps=heatmaps,
        report=report,
        allow_mismatch=allow_mismatch,
        slide_mpp=slide_mpp,
        encoder=encoder,
        encoder_weights=None if encoder_weights is None else Path(encoder_weights),
        download=download,
        limit_s=limit_s,
    )
    folder = PredictionFolder(Path(out))
    paths = list_paths("items", items)
    if folder.out.resolve() in (item.resolve() for item in paths):
        raise RunError(f"{out}: is one of the inputs; choose another `out`")
    folder.check_is_prediction_folder()
    found = find_inputs(paths, outside=folder.out)
    loaded = _LoadedModels.load(list_model_paths(models), settings)
    callbacks = WorkflowCallbacks(on_progress=on_progress, track_extraction=track_extraction)
    with exclusive(folder.out, purpose="prediction"):
        remove_partial_files(folder.out)
        return _PredictionRun(folder, loaded, settings, callbacks).run(found.bags, found.slides)


@dataclass(frozen=True)
class _LoadedModels:
    """The models that predict, and the bags they need."""

    ensembles: tuple[LoadedModel, ...]
    requirements: InputRequirements
    models: tuple[ModelInfo, ...] = field(init=False)
    """Models in the tables; with several, their ensemble is last."""

    def __post_init__(self) -> None:
        models = [ModelInfo(one.name, one.hash, len(one.members)) for one in self.ensembles]
        if len(models) > 1:
            models.append(
                ModelInfo(ENSEMBLE_NAME, combine_hashes([m.hash for m in models]), len(models))
            )
        object.__setattr__(self, "models", tuple(models))

    @classmethod
    def load(cls, models: Sequence[str | Path], settings: PredictionSettings) -> _LoadedModels:
        ensembles = load_ensembles(models, device=settings.device)
        needs = {
            f"{one.name} ({number})" if number else one.name: InputRequirements.from_card(
                member.card, one.name
            )
            for one in ensembles
            for number, member in enumerate(one.members)
        }
        return cls(ensembles, InputRequirements.merge(needs))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.ensembles[0].classes

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
            yield self.models[-1], average_predictions(predictions), time.perf_counter() - begun


class _PredictionRun:
    def __init__(
        self,
        folder: PredictionFolder,
        models: _LoadedModels,
        settings: PredictionSettings,
        callbacks: WorkflowCallbacks,
    ) -> None:
        self.folder, self.models, self.settings = folder, models, settings
        self.callbacks = callbacks
        self.failures: list[PredictionFailure] = []

    def run(self, bags: Mapping[str, Path], slides: Mapping[str, Path]) -> PredictionSummary:
        slides_to_draw = dict(slides) | self._find_slides_of(bags)
        made = self._extract_slides(slides) if slides else {}
        items = {name: str(path) for name, path in (*bags.items(), *slides.items())}
        records = self._predict_bags({**bags, **made}, items)
        models = self.models
        if self.settings.heatmaps:
            # if images fill the disk, the predictions are already written
            write_tables(self.folder, models.classes, models.models, records, self.failures)
            records = self._draw_heatmaps(records, slides_to_draw)
        pages = [record.slide_id for record in records] if self.settings.report else []
        removed = self.folder.remove_old_reports(keep=pages)
        write_tables(self.folder, models.classes, models.models, records, self.failures)
        if self.settings.report:
            self._write_reports(records)
        return PredictionSummary(models.classes, models.models, records, self.failures, removed)

    # Slides.

    def _find_slides_of(self, bags: Mapping[str, Path]) -> dict[str, Path]:
        if self.settings.slides is None or not bags:
            return {}
        found = {slide.stem: slide for slide in find_slides([self.settings.slides])}
        return {name: found[name] for name in bags if name in found}

    def _extract_slides(self, slides: Mapping[str, Path]) -> dict[str, Path]:
        """Return the bags of slides that could be extracted."""
        from sacmil.workflows.extract_missing import extract_missing

        made = extract_missing(
            slides, self.folder.bags, self.models.requirements, self.settings, self.callbacks
        )
        self.failures += [
            PredictionFailure(make_printable_path(slides[name]), reason)
            for name, reason in made.failures.items()
        ]
        return made.bags

    # Predictions.

    def _predict_bags(
        self, bags: Mapping[str, Path], items: Mapping[str, str]
    ) -> list[SlidePredictions]:
        """Return the predictions of every readable bag, sorted by name."""
        current = {name: self._read_existing(name, path) for name, path in sorted(bags.items())}
        todo = [name for name, record in current.items() if record is None]
        self.callbacks.on_progress("predicting", 0, len(todo))
        readings = prefetch_bags([bags[name] for name in todo], limit_s=self.settings.limit_s)
        for done, (name, reading) in enumerate(zip(todo, readings, strict=True), start=1):
            try:
                if reading.failure is not None:
                    raise InputError(reading.failure)
                current[name] = self._predict_bag(name, items[name], bags[name], reading.value)
            except INPUT_ERRORS as error:
                self.failures.append(
                    PredictionFailure(make_printable_path(items[name]), describe_error(error))
                )
            self.callbacks.on_progress("predicting", done, len(todo))
        return [record for record in current.values() if record is not None]

    def _read_existing(self, name: str, path: Path) -> SlidePredictions | None:
        """Return the record of an earlier run, if of these models and this bag."""
        record = self.folder.read_record(name)
        if record is None or not path.is_file() or record.bag != BagFile.from_path(path):
            return None
        if record.classes != self.models.classes:
            return None
        if record.mismatches and not self.settings.allow_mismatch:
            return None
        return (
            record
            if len(record.select_models(self.models.models)) == len(self.models.models)
            else None
        )

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
            classes=self.models.classes,
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
        needs = self.models.requirements
        wrong, unknown = needs.check(bag)
        if bag.slide_id != name:
            wrong.append(f"it holds the slide {bag.slide_id!r}, the file is called {name!r}")
        if wrong and (needs.dim not in (None, bag.dim) or not self.settings.allow_mismatch):
            raise InputError(f"{path}: {'; '.join(wrong)}; {needs.fix_hint(bag)}")
        odd = [f"{path}: {text}" for text in wrong]
        if self.models.was_trained_on(name):
            odd.append(
                f"{path}: a model was trained on this slide; its prediction is no test of how it "
                "performs on new slides"
            )
        if unknown:
            odd.append(
                f"{path}: could not be checked for the model's {' and '.join(unknown)}, which the "
                "bag or the card does not state"
            )
        return wrong, odd

    def _save_prediction(
        self, name: str, bag: Bag, model: ModelInfo, prediction: Prediction, seconds: float
    ) -> StoredPrediction:
        path = self.folder.scores_path(model.name, name)
        scores = InstanceScores.from_prediction(prediction, bag.coords, float(bag.patch_size))
        write_scores(self.folder.out / path, scores)
        return StoredPrediction.from_prediction(
            prediction, model, scores=path, seconds=round(seconds, 6)
        )

    # Heatmaps.

    def _draw_heatmaps(
        self, records: Sequence[SlidePredictions], slides: Mapping[str, Path]
    ) -> list[SlidePredictions]:
        drawn = []
        for done, record in enumerate(records):
            self.callbacks.on_progress("drawing", done, len(records))
            slide = slides.get(record.slide_id)
            drawn.append(self._draw_record(record, None if slide is None else str(slide.resolve())))
        self.callbacks.on_progress("drawing", len(records), len(records))
        return drawn

    def _draw_record(self, record: SlidePredictions, slide: str | None) -> SlidePredictions:
        """Return the record with its heatmaps; add a warning if they cannot be drawn."""
        wanted = record.select_models(self.models.models)
        if record.slide == slide and all(one.pictures for one in wanted):
            return record
        try:
            drawn = draw_slide_pictures(self.folder, record, wanted, slide)
        except SacMILError as error:
            return replace(record, warnings=(*record.warnings, f"no heatmap: {error}"))
        except OSError as error:  # such as a full disk, which is no fault of this slide
            self.failures.append(
                PredictionFailure(
                    make_printable_path(record.item), f"no heatmap: {describe_error(error)}"
                )
            )
            return record
        self.folder.write_record(drawn)
        return drawn

    # Pages.

    def _write_reports(self, records: Sequence[SlidePredictions]) -> None:
        from sacmil.workflows.model_summary import ModelSummary
        from sacmil.workflows.slide_report import write_slide_report

        facts = [ModelSummary.from_ensemble(one) for one in self.models.ensembles]
        for done, record in enumerate(records):
            self.callbacks.on_progress("writing pages", done, len(records))
            write_slide_report(self.folder, record, self.models.models, facts)
        self.callbacks.on_progress("writing pages", len(records), len(records))


def _check_is_utf8(path: Path) -> None:
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path}: its name is not UTF-8, which tables need; rename it") from None


def _to_int_pair(values: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return Python numbers, which JSON needs; a file may give numpy's."""
    return None if values is None else (int(values[0]), int(values[1]))
