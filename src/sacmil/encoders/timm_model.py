"""timm:NAME: any model of timm, with the input size and the normalisation timm states for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import NetworkSource
from sacmil.encoders._timm import import_timm
from sacmil.encoders._weights import WeightsOrigin
from sacmil.errors import EncoderError, suggest_names

if TYPE_CHECKING:
    from torch import nn

PREFIX = "timm:"
SUMMARY = "timm:NAME, any model of timm, e.g. timm:vit_small_patch14_dinov2.lvd142m"


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
        card=_make_card(timm, name, config),
        origin=WeightsOrigin(hub=hub),
        build=partial(_build_network, name),
        unused_prefixes=_list_head_prefixes(config),
    )


def _build_network(name: str) -> nn.Module:
    network: nn.Module = import_timm().create_model(name, pretrained=False, num_classes=0)
    return network


def _make_card(timm: Any, name: str, config: Any) -> EncoderCard:
    channels, height, width = config.input_size
    if channels != 3 or height != width:
        raise EncoderError(f"timm:{name} takes {config.input_size}; expected square RGB images")
    is_smooth = config.interpolation in ("bilinear", "bicubic")
    return EncoderCard(
        name=f"timm:{name}",
        width=_find_width(name),
        input_px=height,
        resample=config.interpolation if is_smooth else "bilinear",
        mean=tuple(config.mean),
        std=tuple(config.std),
        pooling="timm's own",
        mpp=0.5,
        license=config.license or "see its hub page",
        weights=f"hub {config.hf_hub_id}" if config.hf_hub_id else "a file of yours",
    )


def _find_width(name: str) -> int:
    import torch

    with torch.device("meta"):
        network: Any = _build_network(name)
    return int(getattr(network, "head_hidden_size", network.num_features))


def _list_head_prefixes(config: Any) -> tuple[str, ...]:
    """Return the prefixes of classifiers; some models have two."""
    names = config.classifier or ()
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
