"""Extracts bags from slides: ``sacmil extract``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from sacmil.arguments import list_paths, to_output_folder
from sacmil.encoders import describe_encoder, load_encoder
from sacmil.environment import count_gpus
from sacmil.errors import CohortWarning, EncoderError, OptionError, ResolutionError, suggest_names
from sacmil.extraction.extract_slides import (
    STAGES,
    ExtractionProgress,
    extract_on_ray,
    extract_slides,
)
from sacmil.extraction.pipeline import ExtractionResources
from sacmil.extraction.slide_request import ExtractionSettings
from sacmil.extraction.table import ExtractionSummary
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
        out: the output folder; docs/how-to/extract.md lists its files.
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
        ...     out, slide = f"{folder}/cohort", f"{folder}/slide.png"
        ...     summary = extract(slide, out, slide_mpp=0.5, until="tiles")
        >>> summary.done, summary.failures, summary.rows[0].tiles
        (['slide'], {}, '4')
    """
    with _reject_options():
        mpp = _resolve_mpp(mpp, magnification)
        settings = ExtractionSettings(
            tiles=TileSpec(mpp=mpp, patch_size=patch_size, overlap=overlap, min_tissue=min_tissue),
            tissue_mode=tissue_mode,
            resolutions=SlideResolutions.parse(slide_mpp),
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
    _check_choices(until, engine, reader, address, gpus)
    with _reject_options():
        describe_encoder(encoder)
    items, previews = list_paths("slides", slides), [out / "tissue"]
    found = find_slides(items, exclude=previews, include_names=include, exclude_names=exclude)
    for name in settings.resolutions.find_unmatched(found):
        warnings.warn(f"`slide_mpp`: no slide is named {name}", CohortWarning, stacklevel=2)
    options: dict[str, Any] = {"weights": weights, "download": download}
    with progress(len(found)) if progress else nullcontext() as callbacks:
        shared: dict[str, Any] = dict(settings=settings, resources=resources, progress=callbacks)
        if until:
            rows = extract_slides(found, out, until=until, **shared)
        elif engine == "ray":
            shared |= {"address": address, "gpus": len(_list_gpus(gpus))}
            rows = extract_on_ray(found, out, encoder, options, **shared)
        else:
            devices = [f"cuda:{number}" for number in _list_gpus(gpus)] or ["cpu"]
            encoders = [load_encoder(encoder, device=device, **options) for device in devices]
            rows = extract_slides(found, out, encoders=encoders, **shared)
    return ExtractionSummary(out, rows)


def _list_gpus(gpus: Sequence[int] | None) -> Sequence[int]:
    return range(count_gpus()) if gpus is None else gpus


@contextmanager
def _reject_options() -> Iterator[None]:
    """Report wrong arguments as such, not as problems of slides and encoders."""
    try:
        yield
    except (EncoderError, ResolutionError) as error:
        raise OptionError(str(error)) from error


def _check_choices(
    until: str | None,
    engine: str,
    reader: str | None,
    address: str | None,
    gpus: Sequence[int] | None,
) -> None:
    """Reject wrong arguments before slides are searched for."""
    known = {
        "until": (until, STAGES),
        "engine": (engine, ENGINES),
        "reader": (reader, list_readers()),
    }
    for argument, (name, names) in known.items():
        if name is not None and name not in names:
            raise OptionError(f"`{argument}={name}`; {suggest_names(name, names)}")
    if address and engine != "ray":
        raise OptionError("`address` names a Ray cluster; add `engine='ray'`")
    if until and engine == "ray":
        raise OptionError("`until` runs on this machine only; leave `engine='ray'` out")
    if gpus is not None and not _are_gpu_numbers(gpus):
        raise OptionError(f"`gpus` is {gpus!r}; expected a list of numbers such as [0, 1]")


def _are_gpu_numbers(gpus: object) -> bool:
    return isinstance(gpus, Sequence) and all(isinstance(one, int) and one >= 0 for one in gpus)


def _resolve_mpp(mpp: float | None, magnification: float | None) -> float | None:
    is_default = isinstance(mpp, _DefaultMpp)
    if magnification is None:
        return float(_DEFAULT_MPP) if is_default else mpp
    if not is_default:
        raise OptionError("`mpp` and `magnification` both set the resolution; give one of them")
    return magnification_to_mpp(magnification)
