"""Extracts bags from slides: ``sacmil extract``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sacmil.arguments import list_paths, to_output_folder
from sacmil.encoders import describe_encoder, load_encoder
from sacmil.environment import count_gpus
from sacmil.errors import CohortWarning, EncoderError, OptionError, ResolutionError, suggest_names
from sacmil.extraction.extract_slides import STAGES, ExtractionProgress, extract_slides
from sacmil.extraction.on_ray import extract_on_ray
from sacmil.extraction.pipeline import ExtractionResources
from sacmil.extraction.slide_request import ExtractionSettings
from sacmil.extraction.table import ExtractionRow, ExtractionSummary
from sacmil.slides.readers import list_readers
from sacmil.slides.resolution import SlideResolutions, magnification_to_mpp
from sacmil.slides.search import find_slides
from sacmil.slides.tiling import TileSpec

ENGINES = ("local", "ray")


class _DefaultMpp(float):
    """Resolution that the caller did not choose; ``help`` shows it as a number."""


_DEFAULT_MPP = _DefaultMpp(0.5)


def extract(
    slides: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    encoder: str = "lite0",
    weights: str | Path | None = None,
    download: bool = False,
    mpp: float | None = _DEFAULT_MPP,
    magnification: float | None = None,
    patch_size: int = 256,
    overlap: int = 0,
    min_tissue: float = 0.25,
    tissue_mode: str = "auto",
    slide_mpp: float | str | Path | None = None,
    allow_upsampling: bool = False,
    reader: str | None = None,
    drop_white: bool = False,
    drop_blurred: bool = False,
    dtype: str = "float16",
    slide_limit_s: float = 7200.0,
    tile_limit_s: float = 60.0,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    until: Literal["tissue", "tiles"] | None = None,
    gpus: Sequence[int] | None = None,
    workers: int = 0,
    threads: int = 0,
    batch_size: int = 0,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    progress: Callable[[int], AbstractContextManager[ExtractionProgress]] | None = None,
) -> ExtractionSummary:
    """Make a bag of every slide; files that are up to date are kept.

    A slide that fails does not stop the others: the summary and extraction.csv give the reason.

    Args:
        slides: a file, a folder that is searched recursively, or several.
        out: the output folder; docs/extraction.md lists its files.
        encoder: one of list_encoders(), or onnx:FILE.
        weights: file with the encoder's weights.
        download: whether to download the encoder's weights.
        mpp: microns per pixel of tiles; None counts in pixels of the image.
        magnification: objective power instead of ``mpp``; 20 is 0.5, 40 is 0.25.
        patch_size: side of a tile in such pixels.
        overlap: pixels shared by neighbouring tiles.
        min_tissue: share of a tile that must be tissue.
        tissue_mode: detect, all (the whole image) or auto; auto means all for small plain images.
        slide_mpp: microns per pixel of all slides, or a table with columns wsi,mpp.
        allow_upsampling: whether tiles may be finer than the scan.
        reader: name of the slide reader; None takes the first that opens the slide.
        drop_white: leave out tiles that are mostly white.
        drop_blurred: leave out tiles that are out of focus.
        dtype: float16 or float32, the type of the features.
        slide_limit_s: seconds after which a slide fails.
        tile_limit_s: seconds after which reading a tile fails, and with it the slide.
        include: patterns of names such as ``*.bmp``; if there are any, a slide must match one.
        exclude: patterns of slides to leave out.
        until: stop after tissue or tiles; a later call reuses the files, edited outlines too.
        gpus: numbers of the GPUs; None takes all, an empty list the CPU.
        workers: processes that read slides; 0 chooses by cores.
        threads: batches encoded in parallel; 0 chooses by cores.
        batch_size: tiles encoded at once; 0 chooses by device.
        engine: local, or ray for a cluster.
        address: of the Ray cluster; None uses one that runs here, or starts one.
        progress: called with the number of slides; returns a context with the callbacks.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> with TemporaryDirectory() as folder:
        ...     Image.effect_noise((512, 512), 60).convert("RGB").save(f"{folder}/slide.png")
        ...     summary = extract(f"{folder}/slide.png", f"{folder}/cohort", slide_mpp=0.5)
        >>> summary.done, summary.failures, summary.rows[0].tiles
        (['slide'], {}, '4')
    """
    mpp = _resolve_mpp(mpp, magnification)
    settings = ExtractionSettings(
        tiles=TileSpec(mpp=mpp, patch_size=patch_size, overlap=overlap, min_tissue=min_tissue),
        tissue_mode=tissue_mode,
        resolutions=_parse_resolutions(slide_mpp),
        allow_upsampling=allow_upsampling,
        reader=reader,
        drop_white=drop_white,
        drop_blurred=drop_blurred,
        dtype=dtype,
        slide_limit_s=slide_limit_s,
        tile_limit_s=tile_limit_s,
    )
    resources = ExtractionResources(workers=workers, threads=threads, batch_size=batch_size)
    out = to_output_folder(out)
    run = _ExtractionRun(
        out, settings, resources, encoder, weights, download, until, gpus, engine, address
    )
    run.check()
    found = run.find_slides(list_paths("slides", slides), include, exclude)
    _warn_of_unmatched(settings.resolutions, found)
    with progress(len(found)) if progress else nullcontext() as callbacks:
        return ExtractionSummary(out, run.extract(found, callbacks))


@dataclass(frozen=True)
class _ExtractionRun:
    """What one call of ``extract`` does, and where."""

    out: Path
    settings: ExtractionSettings
    resources: ExtractionResources
    encoder: str
    weights: str | Path | None
    download: bool
    until: str | None
    gpus: Sequence[int] | None
    engine: str
    address: str | None

    def check(self) -> None:
        """Reject wrong arguments before slides are searched for."""
        known = {"until": STAGES, "engine": ENGINES, "reader": list_readers()}
        given = {"until": self.until, "engine": self.engine, "reader": self.settings.reader}
        for argument, name in given.items():
            if name is not None and name not in known[argument]:
                hint = suggest_names(name, known[argument])
                raise OptionError(f"`{argument}={name}`; {hint}")
        if self.address and self.engine != "ray":
            raise OptionError("`address` names a Ray cluster; add `engine='ray'`")
        if self.until and self.engine == "ray":
            raise OptionError("`until` runs on this machine only; leave `engine='ray'` out")
        if self.gpus is not None and not _are_gpu_numbers(self.gpus):
            raise OptionError(f"`gpus` is {self.gpus!r}; expected a list of numbers such as [0, 1]")
        try:
            describe_encoder(self.encoder)
        except EncoderError as error:
            raise OptionError(str(error)) from error

    def find_slides(
        self, items: Sequence[Path], include: str | Sequence[str], exclude: str | Sequence[str]
    ) -> list[Path]:
        """Return the slides in files and folders, but not this run's own previews."""
        included, excluded = (
            [names] if isinstance(names, str) else names for names in (include, exclude)
        )
        previews = [self.out / "tissue"]
        return find_slides(items, exclude=previews, include_names=included, exclude_names=excluded)

    def extract(
        self, slides: Sequence[Path], progress: ExtractionProgress | None
    ) -> list[ExtractionRow]:
        """Extract on this machine or on Ray."""
        shared: dict[str, Any] = {
            "settings": self.settings,
            "resources": self.resources,
            "progress": progress,
        }
        if self.until:
            return extract_slides(slides, self.out, until=self.until, **shared)
        gpus = range(count_gpus()) if self.gpus is None else self.gpus
        options: dict[str, Any] = {"weights": self.weights, "download": self.download}
        if self.engine == "ray":
            shared |= {"address": self.address, "gpus": len(gpus)}
            return extract_on_ray(slides, self.out, self.encoder, options, **shared)
        devices = [f"cuda:{number}" for number in gpus] or ["cpu"]
        encoders = [load_encoder(self.encoder, device=device, **options) for device in devices]
        return extract_slides(slides, self.out, encoders=encoders, **shared)


def _are_gpu_numbers(gpus: object) -> bool:
    return isinstance(gpus, Sequence) and all(isinstance(one, int) and one >= 0 for one in gpus)


def _resolve_mpp(mpp: float | None, magnification: float | None) -> float | None:
    is_default = isinstance(mpp, _DefaultMpp)
    if magnification is None:
        return float(_DEFAULT_MPP) if is_default else mpp
    if not is_default:
        raise OptionError("`mpp` and `magnification` both set the resolution; give one of them")
    try:
        return magnification_to_mpp(magnification)
    except ResolutionError as error:
        raise OptionError(str(error)) from error


def _parse_resolutions(slide_mpp: float | str | Path | None) -> SlideResolutions:
    if slide_mpp is None:
        return SlideResolutions()
    try:
        return SlideResolutions.parse(str(slide_mpp))
    except ResolutionError as error:
        raise OptionError(str(error)) from error


def _warn_of_unmatched(resolutions: SlideResolutions, slides: Sequence[Path]) -> None:
    for name in resolutions.find_unmatched(slides):
        message = f"`slide_mpp`: no slide is named {name}"
        warnings.warn(message, CohortWarning, stacklevel=3)
