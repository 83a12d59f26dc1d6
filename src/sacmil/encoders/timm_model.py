"""timm:NAME: any model of timm, with the input size and the normalisation timm states for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import Network
from sacmil.encoders._timm import import_timm
from sacmil.encoders._weights import Origin
from sacmil.errors import EncoderError, suggestion

if TYPE_CHECKING:
    from torch import nn

PREFIX = "timm:"
SUMMARY = "timm:NAME, any model of timm, e.g. timm:vit_small_patch14_dinov2.lvd142m"


def find(name: str) -> Network:
    """A model of timm by its name, with or without the tag of its weights."""
    timm = import_timm()
    if not timm.is_model(name):
        known = suggestion(name.split(".")[0], timm.list_models())
        raise EncoderError(f"timm has no model {name!r}; {known[:500]}")
    tags = timm.list_pretrained(f"{name.split('.')[0]}.*")
    facts = timm.get_pretrained_cfg(name) if "." not in name or name in tags else None
    if facts is None:
        known = ", ".join(tags) or "none"
        raise EncoderError(f"timm has no weights called {name!r}; known are: {known}")
    hub = (facts.hf_hub_id,) if facts.hf_hub_id else ()
    return Network(
        card=_card(timm, name, facts),
        origin=Origin(hub=hub),
        build=partial(_build, name),
        unused=_heads(facts),
    )


def _build(name: str) -> nn.Module:
    network: nn.Module = import_timm().create_model(name, pretrained=False, num_classes=0)
    return network


def _card(timm: Any, name: str, facts: Any) -> EncoderCard:
    channels, height, width = facts.input_size
    if channels != 3 or height != width:
        raise EncoderError(f"timm:{name} takes {facts.input_size}; expected square RGB images")
    smooth = facts.interpolation in ("bilinear", "bicubic")
    return EncoderCard(
        name=f"timm:{name}",
        width=_width(name),
        input_px=height,
        resample=facts.interpolation if smooth else "bilinear",
        mean=tuple(facts.mean),
        std=tuple(facts.std),
        pooling="timm's own",
        mpp=0.5,
        licence=facts.license or "see its hub page",
        weights=f"hub {facts.hf_hub_id}" if facts.hf_hub_id else "a file of yours",
    )


def _width(name: str) -> int:
    import torch

    with torch.device("meta"):
        network: Any = _build(name)
    return int(getattr(network, "head_hidden_size", network.num_features))


def _heads(facts: Any) -> tuple[str, ...]:
    """Names of the classifier, which some models have two of."""
    names = facts.classifier or ()
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
