"""From slides or bags to answers: extract, ask, draw, tell; each step does only what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sacmil.alone import alone_in, remove_leftovers
from sacmil.bag import Bag
from sacmil.card import joint_hash, seen_mark
from sacmil.errors import InputError, RunError, SacMILError
from sacmil.results import Model, write_scores
from sacmil.slides.search import find_slides
from sacmil.workflows.bag_needs import BagNeeds
from sacmil.workflows.ensemble import (
    JOINT,
    Ensemble,
    Said,
    load_ensembles,
    together,
)
from sacmil.workflows.items import (
    FAILURES,
    Reading,
    find_items,
    printable_path,
    read_each,
    reason,
)
from sacmil.workflows.prediction_folder import (
    BagFile,
    Failure,
    ModelAnswer,
    PredictionFolder,
    SlideAnswers,
    write_tables,
)
from sacmil.workflows.prediction_settings import Settings, Watcher
from sacmil.workflows.slide_pictures import draw_slide


@dataclass(frozen=True)
class Predicted:
    """What became of the items."""

    classes: tuple[str, ...]
    models: tuple[Model, ...]
    records: list[SlideAnswers]
    failures: list[Failure]
    removed_pages: int = 0
    """Pages of earlier commands, which showed other predictions."""


def predict_items(
    items: Iterable[str | Path],
    out: str | Path,
    models: Sequence[str | Path],
    settings: Settings | None = None,
    *,
    watcher: Watcher | None = None,
) -> Predicted:
    """Answer every slide and bag; one that cannot be does not stop the others.

    Args:
        items: slides, bags, or folders of either.
        out: see prediction_folder.py for what is put where.
        models: model folders, exported ones, or runs, which count as the mean of their parts.
        settings: how.
        watcher: told as it goes on.
    """
    settings = settings or Settings()
    folder = PredictionFolder(Path(out))
    asked_for = list(map(Path, items))
    if folder.out.resolve() in (item.resolve() for item in asked_for):
        raise RunError(f"{out}: is what is to be answered; choose another --out")
    folder.check_is_ours()
    found = find_items(asked_for, outside=folder.out)
    asked = _Asked.load(models, settings)
    with alone_in(folder.out, what="prediction"):
        remove_leftovers(folder.out)
        work = _Work(folder, asked, settings, watcher or Watcher())
        return work.do(found.bags, found.slides)


@dataclass(frozen=True)
class _Asked:
    """Everyone who answers, and which bags they need."""

    ensembles: tuple[Ensemble, ...]
    needs: BagNeeds
    models: tuple[Model, ...] = field(init=False)
    """As tables name them; where there are several, all of them together come last."""

    def __post_init__(self) -> None:
        models = [Model(one.name, one.hash, len(one.members)) for one in self.ensembles]
        if len(models) > 1:
            models.append(Model(JOINT, joint_hash([m.hash for m in models]), len(models)))
        object.__setattr__(self, "models", tuple(models))

    @classmethod
    def load(cls, models: Sequence[str | Path], settings: Settings) -> _Asked:
        ensembles = load_ensembles(models, device=settings.device)
        needs = {
            f"{one.name} ({number})" if number else one.name: BagNeeds.of(member.card, one.name)
            for one in ensembles
            for number, member in enumerate(one.members)
        }
        return cls(ensembles, BagNeeds.joined(needs))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.ensembles[0].classes

    def have_seen(self, slide_id: str) -> bool:
        """Whether a member was trained on the slide, as far as cards say."""
        for member in (member for one in self.ensembles for member in one.members):
            notes = member.card.get("notes")
            training = notes.get("training") if isinstance(notes, dict) else None
            marks = training.get("seen") if isinstance(training, dict) else None
            if isinstance(marks, list) and seen_mark("slide", slide_id) in marks:
                return True
        return False

    def ask(self, bag: Bag) -> Iterator[tuple[Model, Said, float]]:
        """Each answer and the seconds it took."""
        said: list[Said] = []
        begun = time.perf_counter()
        for model, ensemble in zip(self.models, self.ensembles, strict=False):
            started = time.perf_counter()
            said.append(ensemble.ask(bag))
            yield model, said[-1], time.perf_counter() - started
        if len(said) > 1:
            yield self.models[-1], together(said), time.perf_counter() - begun


class _Work:
    def __init__(
        self, folder: PredictionFolder, asked: _Asked, settings: Settings, watcher: Watcher
    ) -> None:
        self.folder, self.asked, self.settings = folder, asked, settings
        self.watcher = watcher
        self.failures: list[Failure] = []

    def do(self, bags: Mapping[str, Path], slides: Mapping[str, Path]) -> Predicted:
        pictured = dict(slides) | self._slides_of(bags)
        made = self._made(slides) if slides else {}
        items = {name: str(path) for name, path in (*bags.items(), *slides.items())}
        records = self._answer({**bags, **made}, items)
        asked = self.asked
        if self.settings.heatmaps:
            # a disk that pictures fill still holds the predictions
            write_tables(self.folder, asked.classes, asked.models, records, self.failures)
            records = self._draw(records, pictured)
        pages = [record.slide_id for record in records] if self.settings.report else []
        removed = self.folder.remove_pages(but=pages)
        write_tables(self.folder, asked.classes, asked.models, records, self.failures)
        if self.settings.report:
            self._report(records)
        return Predicted(asked.classes, asked.models, records, self.failures, removed)

    # Slides.

    def _slides_of(self, bags: Mapping[str, Path]) -> dict[str, Path]:
        if self.settings.slides is None or not bags:
            return {}
        found = {slide.stem: slide for slide in find_slides([self.settings.slides])}
        return {name: found[name] for name in bags if name in found}

    def _made(self, slides: Mapping[str, Path]) -> dict[str, Path]:
        """Bags of slides, as far as they can be made."""
        from sacmil.workflows.slide_bags import make_bags

        made = make_bags(slides, self.folder.bags, self.asked.needs, self.settings, self.watcher)
        self.failures += [
            Failure(printable_path(slides[name]), reason) for name, reason in made.failures.items()
        ]
        return made.bags

    # Answers.

    def _answer(self, bags: Mapping[str, Path], items: Mapping[str, str]) -> list[SlideAnswers]:
        """What is said of every bag that can be answered, in the order of their names."""
        current = {name: self._known(name, path) for name, path in sorted(bags.items())}
        todo = [name for name, record in current.items() if record is None]
        self.watcher.tell("answering", 0, len(todo))
        readings = read_each([bags[name] for name in todo], limit_s=self.settings.limit_s)
        for done, (name, reading) in enumerate(zip(todo, readings, strict=True), start=1):
            try:
                if reading.failure is not None:
                    raise InputError(reading.failure)
                current[name] = self._answered(name, items[name], bags[name], reading.value)
            except FAILURES as error:
                self.failures.append(Failure(printable_path(items[name]), reason(error)))
            self.watcher.tell("answering", done, len(todo))
        return [record for record in current.values() if record is not None]

    def _known(self, name: str, path: Path) -> SlideAnswers | None:
        """The record of an earlier run, if these models have answered this very bag."""
        record = self.folder.read(name)
        if record is None or not path.is_file() or record.bag != BagFile.of(path):
            return None
        if record.classes != self.asked.classes:
            return None
        if record.mismatches and not self.settings.allow_mismatch:
            return None
        return record if len(record.by(self.asked.models)) == len(self.asked.models) else None

    def _answered(self, name: str, item: str, path: Path, reading: Reading) -> SlideAnswers:
        bag = reading.bag
        _check_is_utf8(path)
        file = BagFile.of(path)
        wrong, odd = self._compared(name, path, bag)
        record = SlideAnswers(
            slide_id=name,
            item=item,
            bag=file,
            classes=self.asked.classes,
            instances=len(bag),
            encoder=bag.encoder.name if bag.encoder else None,
            patch_um=None if bag.patch_size_um is None else float(bag.patch_size_um),
            mpp=None if bag.mpp is None else float(bag.mpp),
            size=_pair(bag.slide_size),
            bounds_origin=_pair(bag.bounds_origin),
            mismatches=tuple(wrong),
            warnings=(*reading.oddities, *odd),
        )
        answers = [self._kept(name, bag, *answer) for answer in self.asked.ask(bag)]
        older = self.folder.read(name)
        if older is not None and (older.bag, older.classes) == (file, record.classes):
            record = record.with_answers(older.answers)
        record = record.with_answers(answers)
        self.folder.write(record)
        return record

    def _compared(self, name: str, path: Path, bag: Bag) -> tuple[list[str], list[str]]:
        needs = self.asked.needs
        wrong, unknown = needs.check(bag)
        if bag.slide_id != name:
            wrong.append(f"it holds the slide {bag.slide_id!r}, the file is called {name!r}")
        if wrong and (needs.dim not in (None, bag.dim) or not self.settings.allow_mismatch):
            raise InputError(f"{path}: {'; '.join(wrong)}; {needs.way_out(bag)}")
        odd = [f"{path}: {text}" for text in wrong]
        if self.asked.have_seen(name):
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

    def _kept(self, name: str, bag: Bag, model: Model, said: Said, seconds: float) -> ModelAnswer:
        scores = self.folder.scores(model.name, name)
        write_scores(self.folder.out / scores, said.located(bag))
        return ModelAnswer(
            model=model.name,
            hash=model.hash,
            probabilities=tuple(said.probabilities.tolist()),
            parts=tuple(tuple(part) for part in said.parts.tolist()),
            spread=None if said.spread is None else tuple(said.spread.tolist()),
            scores=scores,
            seconds=round(seconds, 6),
        )

    # Pictures.

    def _draw(
        self, records: Sequence[SlideAnswers], slides: Mapping[str, Path]
    ) -> list[SlideAnswers]:
        drawn = []
        for done, record in enumerate(records):
            self.watcher.tell("drawing", done, len(records))
            slide = slides.get(record.slide_id)
            drawn.append(self._drawn(record, None if slide is None else str(slide.resolve())))
        self.watcher.tell("drawing", len(records), len(records))
        return drawn

    def _drawn(self, record: SlideAnswers, slide: str | None) -> SlideAnswers:
        """With pictures; without those that cannot be drawn, and a warning why."""
        wanted = record.by(self.asked.models)
        if record.slide == slide and all(answer.pictures for answer in wanted):
            return record
        try:
            kept = draw_slide(self.folder, record, wanted, slide)
        except SacMILError as error:
            return replace(record, warnings=(*record.warnings, f"no heatmap: {error}"))
        except OSError as error:  # the disk is full, say: not a matter of this slide
            self.failures.append(
                Failure(printable_path(record.item), f"no heatmap: {reason(error)}")
            )
            return record
        self.folder.write(kept)
        return kept

    # Pages.

    def _report(self, records: Sequence[SlideAnswers]) -> None:
        from sacmil.workflows.model_facts import ModelFacts
        from sacmil.workflows.slide_report import write_report

        facts = [ModelFacts.of(one) for one in self.asked.ensembles]
        for done, record in enumerate(records):
            self.watcher.tell("writing pages", done, len(records))
            write_report(self.folder, record, self.asked.models, facts)
        self.watcher.tell("writing pages", len(records), len(records))


def _check_is_utf8(path: Path) -> None:
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{path}: its name is not UTF-8, tables could not hold it; rename it"
        ) from None


def _pair(values: tuple[int, int] | None) -> tuple[int, int] | None:
    """As numbers of Python, which JSON takes; those of a file may be numpy's."""
    return None if values is None else (int(values[0]), int(values[1]))
