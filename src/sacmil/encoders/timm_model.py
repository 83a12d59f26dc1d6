"""timm:NAME: any model of timm, with the input size and the normalisation timm states for it.

timm imports torchvision. The wheel of torchvision on the package index is linked against CUDA.
With a CPU-only torch its operators do not load, and its import fails while describing two of them
("operator torchvision::nms does not exist"). Nothing here uses either, so declaring their
signatures is enough.
"""

from __future__ import annotations

import importlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import NetworkSource, WeightsOrigin
from sacmil.errors import EncoderError, MissingExtraError, suggest_names

if TYPE_CHECKING:
    from torch import nn

PREFIX = "timm:"
SUMMARY = "timm:NAME, any model of timm, e.g. timm:vit_small_patch14_dinov2.lvd142m"
_SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared_libraries: list[Any] = []
"""Kept until the process ends: torch drops the declarations of a collected library."""
_import_lock = threading.Lock()


def find(name: str) -> NetworkSource:
    """Return a model of timm by its name, with or without the tag of its weights."""
    timm = import_timm()
    if not timm.is_model(name):
        known = suggest_names(name.split(".")[0], timm.list_models())
        raise EncoderError(f"timm has no model {name!r}; {known[:500]}")
    tags = timm.list_pretrained(f"{name.split('.')[0]}.*")
    config = timm.get_pretrained_cfg(name) if "." not in name or name in tags else None
    if config is None:
        known = ", ".join(tags) or "none"
        raise EncoderError(f"timm has no weights called {name!r}; known are: {known}")
    hub = (config.hf_hub_id,) if config.hf_hub_id else ()
    return NetworkSource(
        card=_make_card(name, config),
        origin=WeightsOrigin(hub=hub),
        build=partial(_build_network, name),
        unused_prefixes=_list_head_prefixes(config),
    )


def _build_network(name: str) -> nn.Module:
    network: nn.Module = import_timm().create_model(name, pretrained=False, num_classes=0)
    return network


def _make_card(name: str, config: Any) -> EncoderCard:
    channels, height, width = config.input_size
    if channels != 3 or height != width:
        raise EncoderError(f"timm:{name} takes {config.input_size}; expected square RGB images")
    import torch

    with torch.device("meta"):
        network: Any = _build_network(name)
    is_smooth = config.interpolation in ("bilinear", "bicubic")
    return EncoderCard(
        name=f"timm:{name}",
        width=int(getattr(network, "head_hidden_size", network.num_features)),
        input_px=height,
        resample=config.interpolation if is_smooth else "bilinear",
        mean=tuple(config.mean),
        std=tuple(config.std),
        pooling="timm's own",
        license=config.license or "see its hub page",
        weights=f"hub {config.hf_hub_id}" if config.hf_hub_id else "a file of yours",
    )


def _list_head_prefixes(config: Any) -> tuple[str, ...]:
    """Return the prefixes of classifiers; some models have two."""
    names = config.classifier or ()
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


def import_timm() -> Any:
    """Return the package timm."""
    return import_after_torchvision("timm")


def import_after_torchvision(module: str) -> Any:
    """Return a module that imports torchvision, whose operators may not load."""
    with _import_lock:
        try:
            _import_torchvision()
            return importlib.import_module(module)
        except ImportError as error:
            raise MissingExtraError("encoders", "building this encoder") from error


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _declare_operators()
        importlib.import_module("torchvision")


def _declare_operators() -> None:
    import torch

    if not _declared_libraries:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for signature in _SIGNATURES:
            library.define(signature)  # type: ignore[no-untyped-call]
        _declared_libraries.append(library)
