"""Heatmaps of bags: a model's scores as images, GeoJSON and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.arguments import list_paths
from sacmil.atomic import exclusive, remove_partial_files
from sacmil.bag import Bag
from sacmil.cohorts.rows import parse_slide_id
from sacmil.deploy.load import LoadedModel, load_ensemble
from sacmil.errors import (
    ConfigError,
    FormatError,
    InputError,
    OptionError,
    shorten_value,
    suggest_names,
)
from sacmil.formats import find_bags, read_bag
from sacmil.formats._registry import list_suffixes
from sacmil.heatmap import (
    Normalization,
    Truth,
    draw_heatmap,
    normalize_scores,
    read_truth,
    safe_file_name,
    select_scores,
    write_csv,
    write_geojson,
)
from sacmil.heatmap.annotations import check_can_draw
from sacmil.heatmap.truth import SINGLE_SLIDE_SUFFIXES
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results import InstanceScores, Prediction
from sacmil.slides.search import find_slides
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.inputs import INPUT_ERRORS, ModelPath, Paths, describe_error, to_model_path
from sacmil.workflows.output_folder import check_output_folder

PathsByName = dict[str, Path]

SCORE_NAMES = {"sac_mil": "L2 norm after the last block"}
"""Names of models' scores, where the paper has one."""


@dataclass(frozen=True, kw_only=True)
class HeatmapSettings:
    """Files to write for every bag."""

    slides: Path | None = None
    """Folder of the slides; None: maps on white, without tiles."""
    classes: tuple[str, ...] = ()
    """Classes whose scores to draw; empty: the predicted class, if scores are by class."""
    normalization: Normalization = "rank"
    geojson: bool = False
    csv: bool = False
    top: int = 8
    truth: Path | None = None
    """Annotations, a file or folder; a slide without one uses the labels in its bag."""
    allow_mismatch: bool = False
    """Also draw bags whose encoder or tile size differs from the model's."""


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
    normalization: Normalization = "rank",
    geojson: bool = False,
    csv: bool = False,
    top: int = 8,
    truth: str | Path | None = None,
    allow_mismatch: bool = False,
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
        normalization: of the overlay per slide: raw, minmax or rank.
        geojson: also write tiles for QuPath.
        csv: also write a table of the tiles.
        top: number of top tiles.
        truth: annotations, a file or folder; a slide without one uses the labels in its bag.
        allow_mismatch: also draw bags whose encoder or tile size differs from the model's.
        device: auto, cpu, cuda:0, …
        on_progress: called with (task, done, total).

    Returns:
        The files by slide, the failures and notes.

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
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise OptionError(f"`top` is {shorten_value(top)}; expected a number of tiles from 0 up")
    settings = HeatmapSettings(
        slides=None if slides is None else Path(slides),
        classes=(classes,) if isinstance(classes, str) else tuple(classes),
        normalization=normalization,
        geojson=geojson,
        csv=csv,
        top=top,
        truth=None if truth is None else Path(truth),
        allow_mismatch=allow_mismatch,
    )
    folder = check_output_folder(out)
    items = list_paths("bags", bags)
    return _draw_bags(items, to_model_path(model), folder, settings, device, on_progress)


def _draw_bags(
    items: list[Path],
    model: Path,
    out: Path,
    settings: HeatmapSettings,
    device: str,
    on_progress: ProgressCallback,
) -> HeatmapSummary:
    check_can_draw()
    bags = _collect_bags(items, out)
    _check_truth(settings.truth, len(bags))
    slides = {} if settings.slides is None else _slides_by_name(settings.slides)
    ensemble = load_ensemble(model, device=device)
    _check_classes(settings.classes, ensemble)
    needs = InputRequirements.from_card(ensemble.members[0].card, str(model))
    summary = HeatmapSummary()
    with exclusive(out, purpose="heatmap"):
        remove_partial_files(out)
        for done, path in enumerate(bags, start=1):
            try:
                scored = _score_bag(path, ensemble, needs, settings, summary)
                summary.written[scored.bag.slide_id] = _write_heatmaps(
                    scored, out, ensemble, slides, settings, summary
                )
            except ConfigError:  # an error of the call, not of this bag
                raise
            except INPUT_ERRORS as error:
                summary.failures[path] = describe_error(error)
            on_progress("heatmaps", done, len(bags))
    return summary


def _check_classes(classes: Sequence[str], ensemble: LoadedModel) -> None:
    for which in classes:
        if which not in ensemble.classes:
            hint = suggest_names(which, ensemble.classes)
            raise ConfigError(f"{ensemble.path}: has no class {which!r}; {hint}")


def _collect_bags(items: Sequence[Path], out: Path) -> list[Path]:
    for item in items:
        if item.is_file() and item.suffix.lower() not in list_suffixes():
            raise FormatError(
                f"{item}: is not a bag ({', '.join(list_suffixes())}); to predict a "
                "slide and draw its heatmap, use sacmil predict"
            )
    return find_bags(items, exclude=out)


def _check_truth(path: Path | None, bags: int) -> None:
    """Reject the annotation of one slide for several bags, which would all get it."""
    if (
        path is not None
        and bags > 1
        and path.is_file()
        and path.name.endswith(SINGLE_SLIDE_SUFFIXES)
    ):
        raise ConfigError(
            f"{path}: holds the annotation of one slide, and there are {bags} bags; expected a "
            "folder of files named like the slides, or one JSON file of all"
        )


def _slides_by_name(folder: Path) -> PathsByName:
    found = find_slides([folder])
    return {parse_slide_id(path.name): path for path in found} | {path.stem: path for path in found}


def _score_bag(
    path: Path,
    ensemble: LoadedModel,
    requirements: InputRequirements,
    settings: HeatmapSettings,
    summary: HeatmapSummary,
) -> _ScoredBag:
    bag = read_bag(path)
    if bag.slide_id in summary.written:
        raise FormatError(f"{path}: is a second bag of {bag.slide_id}; expected one per slide")
    _check_requirements(bag, requirements, settings, summary)
    prediction = ensemble.predict(bag)
    scores = InstanceScores.from_prediction(prediction, bag.coords, float(bag.patch_size))
    return _ScoredBag(bag, scores, prediction)


def _check_requirements(
    bag: Bag, requirements: InputRequirements, settings: HeatmapSettings, summary: HeatmapSummary
) -> None:
    """Reject a bag the model was not trained for, or add a note if mismatches are allowed."""
    wrong = requirements.check(bag).problems
    if not wrong:
        return
    if not settings.allow_mismatch or requirements.dim not in (None, bag.dim):
        raise InputError(f"{bag.slide_id}: {'; '.join(wrong)}; {requirements.fix_hint(bag)}")
    summary.notes.append(f"{bag.slide_id}: {'; '.join(wrong)}")


def _write_heatmaps(
    scored: _ScoredBag,
    out: Path,
    ensemble: LoadedModel,
    slides: PathsByName,
    settings: HeatmapSettings,
    summary: HeatmapSummary,
) -> list[Path]:
    bag = scored.bag
    slide = slides.get(bag.slide_id)
    if slide is None and settings.top:
        why = "it is not in `slides`" if settings.slides else "`slides` was not given"
        summary.notes.append(
            f"{bag.slide_id}: the slide was not found ({why}); the map is on white, without top "
            "tiles"
        )
    truth = _load_truth(bag, settings, summary)
    written: list[Path] = []
    for which in settings.classes or (None,):
        pictures = draw_heatmap(
            out,
            bag.slide_id,
            scored.scores,
            classes=ensemble.classes,
            class_name=which,
            predicted=scored.prediction.predicted_class,
            normalization=settings.normalization,
            slide=slide,
            mpp=bag.mpp,
            slide_size=bag.slide_size,
            truth=truth,
            name=_name_score(ensemble),
            note=_describe_prediction(ensemble, scored.prediction),
            top=settings.top,
        )
        written += pictures.values()
    return written + _write_tables(scored, out, ensemble, settings)


def _write_tables(
    scored: _ScoredBag, out: Path, ensemble: LoadedModel, settings: HeatmapSettings
) -> list[Path]:
    """Write GeoJSON and CSV of every score, coloured by the first given or predicted class."""
    bag, how = scored.bag, settings.normalization
    shown = select_scores(
        scored.scores,
        ensemble.classes,
        predicted=scored.prediction.predicted_class,
        class_name=settings.classes[0] if settings.classes else None,
    )
    values = normalize_scores(shown.scores.scores, how)
    columns = _make_columns(scored.scores, ensemble.classes, values, shown.class_name, how)
    written = []
    if settings.geojson:
        written.append(out / f"{safe_file_name(bag.slide_id)}.geojson.gz")
        write_geojson(
            written[-1],
            scored.scores,
            values,
            normalization=how,
            measurements=columns,
            bounds_origin=bag.bounds_origin,
            slide_id=bag.slide_id,
        )
    if settings.csv:
        written.append(out / f"{safe_file_name(bag.slide_id)}.csv")
        write_csv(
            written[-1],
            scored.scores,
            values,
            normalization=how,
            measurements=columns,
            labels=bag.labels,
        )
    return written


def _make_columns(
    scores: InstanceScores,
    classes: Sequence[str],
    values: npt.NDArray[np.float64],
    which: str | None,
    normalization: str,
) -> dict[str, npt.ArrayLike]:
    """Return the columns by name; the score of a class is named after it."""
    columns: dict[str, npt.ArrayLike]
    if scores.class_scores is None:
        columns = {f"score {which}" if which else "score": scores.scores}
    else:
        by_class = zip(classes, scores.class_scores.T, strict=True)
        columns = {f"score {name}": column for name, column in by_class}
    if normalization != "raw":
        columns[f"score {which} ({normalization})" if which else f"score ({normalization})"] = (
            values
        )
    return columns


def _load_truth(bag: Bag, settings: HeatmapSettings, summary: HeatmapSummary) -> Truth | None:
    if settings.truth is None:
        return bag.labels
    found = read_truth(settings.truth, bag.slide_id, bounds_origin=bag.bounds_origin)
    if found is None and bag.labels is None:
        summary.notes.append(f"{bag.slide_id}: {settings.truth} has no annotation of it")
    return bag.labels if found is None else found


def _name_score(ensemble: LoadedModel) -> str:
    if len(ensemble.members) > 1:
        return f"mean rank of {len(ensemble.members)} models' scores"
    return SCORE_NAMES.get(ensemble.members[0].card.model, "score")


def _describe_prediction(ensemble: LoadedModel, prediction: Prediction) -> str:
    """Return the model's name and its probabilities of the slide."""
    pairs = zip(ensemble.classes, prediction.probabilities.tolist(), strict=True)
    probabilities = ", ".join(f"{name} {p:.2f}" for name, p in pairs)
    kind = ensemble.members[0].card.model
    name = kind if kind == ensemble.name else f"{kind} ({ensemble.name})"
    return f"{name} · {probabilities}"
