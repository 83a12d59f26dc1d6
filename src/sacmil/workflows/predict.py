"""From slides or bags to answers: extract, ask, draw, tell; each step does only what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sacmil.bag import Bag
from sacmil.card import anonymized_id, combine_hashes
from sacmil.errors import InputError, RunError, SacMILError
from sacmil.locking import exclusive, remove_partial_files
from sacmil.results import ModelInfo, write_scores
from sacmil.slides.search import find_slides
from sacmil.workflows.ensemble import (
    ENSEMBLE_NAME,
    Ensemble,
    MemberPredictions,
    average_predictions,
    load_ensembles,
)
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.inputs import (
    INPUT_ERRORS,
    BagReading,
    describe_error,
    find_inputs,
    make_printable_path,
    prefetch_bags,
)
from sacmil.workflows.prediction_folder import (
    BagFile,
    ModelPrediction,
    PredictionFailure,
    PredictionFolder,
    SlidePredictions,
    write_tables,
)
from sacmil.workflows.prediction_settings import PredictionSettings, WorkflowCallbacks
from sacmil.workflows.slide_pictures import draw_slide_pictures


@dataclass(frozen=True)
class PredictionSummary:
    """What became of the items."""

    classes: tuple[str, ...]
    models: tuple[ModelInfo, ...]
    records: list[SlidePredictions]
    failures: list[PredictionFailure]
    removed_reports: int = 0
    """Pages of earlier commands, which showed other predictions."""


def predict_slides(
    items: Iterable[str | Path],
    out: str | Path,
    models: Sequence[str | Path],
    settings: PredictionSettings | None = None,
    *,
    callbacks: WorkflowCallbacks | None = None,
) -> PredictionSummary:
    """Answer every slide and bag; one that cannot be does not stop the others.

    Args:
        items: slides, bags, or folders of either.
        out: see prediction_folder.py for what is put where.
        models: model folders, exported ones, or runs, which count as the mean of their parts.
        settings: how.
        callbacks: told as it goes on.
    """
    settings = settings or PredictionSettings()
    folder = PredictionFolder(Path(out))
    asked_for = list(map(Path, items))
    if folder.out.resolve() in (item.resolve() for item in asked_for):
        raise RunError(f"{out}: is what is to be answered; choose another --out")
    folder.check_is_prediction_folder()
    found = find_inputs(asked_for, outside=folder.out)
    asked = _LoadedModels.load(models, settings)
    with exclusive(folder.out, purpose="prediction"):
        remove_partial_files(folder.out)
        work = _PredictionRun(folder, asked, settings, callbacks or WorkflowCallbacks())
        return work.run(found.bags, found.slides)


@dataclass(frozen=True)
class _LoadedModels:
    """Everyone who answers, and which bags they need."""

    ensembles: tuple[Ensemble, ...]
    requirements: InputRequirements
    models: tuple[ModelInfo, ...] = field(init=False)
    """As tables name them; where there are several, all of them together come last."""

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
        """Whether a member was trained on the slide, as far as cards say."""
        for member in (member for one in self.ensembles for member in one.members):
            notes = member.card.get("notes")
            training = notes.get("training") if isinstance(notes, dict) else None
            marks = training.get("seen") if isinstance(training, dict) else None
            if isinstance(marks, list) and anonymized_id("slide", slide_id) in marks:
                return True
        return False

    def predict(self, bag: Bag) -> Iterator[tuple[ModelInfo, MemberPredictions, float]]:
        """Each answer and the seconds it took."""
        said: list[MemberPredictions] = []
        begun = time.perf_counter()
        for model, ensemble in zip(self.models, self.ensembles, strict=False):
            started = time.perf_counter()
            said.append(ensemble.predict(bag))
            yield model, said[-1], time.perf_counter() - started
        if len(said) > 1:
            yield self.models[-1], average_predictions(said), time.perf_counter() - begun


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
        pictured = dict(slides) | self._find_slides_of(bags)
        made = self._extract_slides(slides) if slides else {}
        items = {name: str(path) for name, path in (*bags.items(), *slides.items())}
        records = self._predict_bags({**bags, **made}, items)
        asked = self.models
        if self.settings.heatmaps:
            # a disk that pictures fill still holds the predictions
            write_tables(self.folder, asked.classes, asked.models, records, self.failures)
            records = self._draw_heatmaps(records, pictured)
        pages = [record.slide_id for record in records] if self.settings.report else []
        removed = self.folder.remove_old_reports(keep=pages)
        write_tables(self.folder, asked.classes, asked.models, records, self.failures)
        if self.settings.report:
            self._write_reports(records)
        return PredictionSummary(asked.classes, asked.models, records, self.failures, removed)

    # Slides.

    def _find_slides_of(self, bags: Mapping[str, Path]) -> dict[str, Path]:
        if self.settings.slides is None or not bags:
            return {}
        found = {slide.stem: slide for slide in find_slides([self.settings.slides])}
        return {name: found[name] for name in bags if name in found}

    def _extract_slides(self, slides: Mapping[str, Path]) -> dict[str, Path]:
        """Bags of slides, as far as they can be made."""
        from sacmil.workflows.extract_missing import extract_missing

        made = extract_missing(
            slides, self.folder.bags, self.models.requirements, self.settings, self.callbacks
        )
        self.failures += [
            PredictionFailure(make_printable_path(slides[name]), reason)
            for name, reason in made.failures.items()
        ]
        return made.bags

    # Answers.

    def _predict_bags(
        self, bags: Mapping[str, Path], items: Mapping[str, str]
    ) -> list[SlidePredictions]:
        """What is said of every bag that can be answered, in the order of their names."""
        current = {name: self._read_existing(name, path) for name, path in sorted(bags.items())}
        todo = [name for name, record in current.items() if record is None]
        self.callbacks.on_progress("answering", 0, len(todo))
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
            self.callbacks.on_progress("answering", done, len(todo))
        return [record for record in current.values() if record is not None]

    def _read_existing(self, name: str, path: Path) -> SlidePredictions | None:
        """The record of an earlier run, if these models have answered this very bag."""
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
        answers = [self._save_prediction(name, bag, *answer) for answer in self.models.predict(bag)]
        older = self.folder.read_record(name)
        if older is not None and (older.bag, older.classes) == (file, record.classes):
            record = record.with_answers(older.answers)
        record = record.with_answers(answers)
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
                f"{path}: a model was trained on this slide, so that its answer here does not show "
                "what it is worth on new ones"
            )
        if unknown:
            odd.append(
                f"{path}: whether it fits the model's {' and '.join(unknown)} cannot be told, for "
                "bag or card do not say"
            )
        return wrong, odd

    def _save_prediction(
        self, name: str, bag: Bag, model: ModelInfo, prediction: MemberPredictions, seconds: float
    ) -> ModelPrediction:
        scores = self.folder.scores_path(model.name, name)
        write_scores(self.folder.out / scores, prediction.to_scores(bag))
        return ModelPrediction(
            model=model.name,
            hash=model.hash,
            probabilities=tuple(prediction.probabilities.tolist()),
            parts=tuple(tuple(part) for part in prediction.member_probabilities.tolist()),
            spread=None if prediction.spread is None else tuple(prediction.spread.tolist()),
            scores=scores,
            seconds=round(seconds, 6),
        )

    # Pictures.

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
        """With pictures; without those that cannot be drawn, and a warning why."""
        wanted = record.select_models(self.models.models)
        if record.slide == slide and all(answer.pictures for answer in wanted):
            return record
        try:
            kept = draw_slide_pictures(self.folder, record, wanted, slide)
        except SacMILError as error:
            return replace(record, warnings=(*record.warnings, f"no heatmap: {error}"))
        except OSError as error:  # the disk is full, say: not a matter of this slide
            self.failures.append(
                PredictionFailure(
                    make_printable_path(record.item), f"no heatmap: {describe_error(error)}"
                )
            )
            return record
        self.folder.write_record(kept)
        return kept

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
        raise InputError(
            f"{path}: its name is not UTF-8, tables could not hold it; rename it"
        ) from None


def _to_int_pair(values: tuple[int, int] | None) -> tuple[int, int] | None:
    """As numbers of Python, which JSON takes; those of a file may be numpy's."""
    return None if values is None else (int(values[0]), int(values[1]))
