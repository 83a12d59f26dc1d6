"""Finds encoders by name, loads and exports them.

A public module of this folder defines ``ENCODERS``, a tuple of encoders with fixed names. Or it
defines ``PREFIX``, ``SUMMARY`` and a function ``find(rest)`` for names such as ``timm:NAME``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import sacmil.encoders
from sacmil.encoders._base import Encoder, EncoderCard, EncoderRequest
from sacmil.encoders._network import NetworkSource
from sacmil.encoders.onnx_file import OnnxFile, check_replaceable
from sacmil.environment import keep_freed_memory
from sacmil.errors import EncoderError, suggest_names
from sacmil.plugins import import_public_modules, load_plugins

EncoderSource = NetworkSource | OnnxFile
"""An encoder that is not loaded yet; that of a plugin has the same card and methods."""


@cache
def _import_modules() -> list[ModuleType]:
    added = (plugin.value for plugin in load_plugins("encoders"))
    return [*import_public_modules(sacmil.encoders).values(), *added]


@cache
def _find_named_sources() -> dict[str, EncoderSource]:
    sources: dict[str, EncoderSource] = {}
    for module in _import_modules():
        for source in getattr(module, "ENCODERS", ()):
            name = source.card.name
            if name in sources:
                raise EncoderError(f"two encoders are called {name!r}; one is in {module.__file__}")
            sources[name] = source
    return sources


@cache
def _find_families() -> dict[str, ModuleType]:
    return {module.PREFIX: module for module in _import_modules() if hasattr(module, "PREFIX")}


def list_encoders() -> list[str]:
    """Return the names of encoders, without families such as ``timm:``."""
    return sorted(_find_named_sources())


def list_families() -> dict[str, str]:
    """Return the prefixes of names and paths, such as ``timm:``, and their meanings."""
    return {prefix: module.SUMMARY for prefix, module in sorted(_find_families().items())}


def find_source(name: str) -> EncoderSource:
    """Return the encoder of a name, not loaded yet."""
    for prefix, module in _find_families().items():
        if name.startswith(prefix):
            find: Callable[[str], EncoderSource] = module.find
            return find(name.removeprefix(prefix))
    if name not in _find_named_sources():
        others = " and ".join(f"{prefix}…" for prefix in _find_families())
        raise EncoderError(
            f"there is no encoder {name!r}; {suggest_names(name, _find_named_sources())} (also "
            f"accepted: {others})"
        )
    return _find_named_sources()[name]


def describe_encoder(name: str) -> EncoderCard:
    """Return the card of an encoder; its weights are not needed."""
    return find_source(name).card


def find_encoder_weights(name: str) -> Path:
    """Return the file of an encoder's weights; if there is none, an error says how to get it."""
    return find_source(name).find_weights()


def load_encoder(
    name: str,
    *,
    weights: str | Path | None = None,
    device: str = "cpu",
    engine: str | None = None,
    precision: str | None = None,
    random_weights: bool = False,
    download: bool = False,
) -> Encoder:
    """Load an encoder with its weights.

    Args:
        name: one of list_encoders(), ``timm:NAME`` or ``onnx:FILE``.
        weights: a file to use instead of searching for weights.
        device: cpu, cuda:0, …
        engine: onnxruntime or torch; by default the fastest that is installed.
        precision: float32, float16 or bfloat16; by default float16 on a GPU, else float32.
        random_weights: use random weights with a fixed seed, for tests and benchmarks.
        download: download the weights from the hub if they are not on this machine.
    """
    keep_freed_memory()
    request = EncoderRequest(
        weights=weights,
        random_weights=random_weights,
        download=download,
        device=device,
        engine=engine,
        precision=precision,
    )
    return find_source(name).load(request)


def export_encoder(
    name: str,
    out_dir: str | Path,
    *,
    weights: str | Path | None = None,
    random_weights: bool = False,
    download: bool = False,
) -> Path:
    """Write an encoder for onnxruntime, to be used without torch as ``onnx:OUT_DIR``.

    Args:
        name: of an encoder that torch builds.
        out_dir: a folder; it is replaced once everything is written and checked.
        weights: a file to use instead of searching for weights.
        random_weights: use random weights with a fixed seed, for tests and benchmarks.
        download: download the weights from the hub if they are not on this machine.
    """
    source = find_source(name)
    if not isinstance(source, NetworkSource):
        raise EncoderError(f"{name} is an ONNX file already; copy it with its card")
    check_replaceable(Path(out_dir))
    request = EncoderRequest(weights=weights, random_weights=random_weights, download=download)
    return source.export(request, Path(out_dir))
