"""The pathology foundation models that timm builds: UNI, Virchow, GigaPath, H-optimus.

Parameter names are the official ones, so that the files on the hub load as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import NetworkSource
from sacmil.encoders._timm import import_timm
from sacmil.encoders._weights import WeightsOrigin

if TYPE_CHECKING:
    from torch import nn

_IMAGENET_STATISTICS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BIOPTIMUS_STATISTICS = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)
_RESEARCH_LICENSE = "CC-BY-NC-ND-4.0"
_CLASS_AND_MEAN = "class token, then the mean of the patch tokens"


class FoundationPreset(NamedTuple):
    """The properties in which foundation models differ."""

    name: str
    width: int
    hub: tuple[str, ...]
    license: str
    architecture: str
    """Name of a timm model, created with the options below."""
    options: dict[str, Any]
    is_gated: bool = True
    resample: str = "bicubic"
    pooling: str = "class token"
    statistics: tuple[tuple[float, float, float], tuple[float, float, float]] = _IMAGENET_STATISTICS
    needs_swiglu: bool = False
    """Whether timm needs options for SwiGLU layers; its giant models have them already."""


_VIRCHOW_OPTIONS = {
    "init_values": 1e-5,
    "mlp_ratio": 5.3375,
    "global_pool": "",
    "dynamic_img_size": True,
}
_UNI_V2_OPTIONS = {
    "patch_size": 14,
    "depth": 24,
    "num_heads": 24,
    "init_values": 1e-5,
    "embed_dim": 1536,
    "mlp_ratio": 2.66667 * 2,
    "no_embed_class": True,
    "reg_tokens": 8,
    "dynamic_img_size": True,
}
_GIGAPATH_OPTIONS = {"patch_size": 16, "mlp_ratio": 5.33334}

PRESETS = (
    FoundationPreset(
        "uni_v1",
        1024,
        ("MahmoodLab/UNI", "MahmoodLab/uni"),
        _RESEARCH_LICENSE,
        "vit_large_patch16_224",
        {"init_values": 1e-5, "dynamic_img_size": True},
        resample="bilinear",
    ),
    FoundationPreset(
        "uni_v2",
        1536,
        ("MahmoodLab/UNI2-h",),
        _RESEARCH_LICENSE,
        "vit_giant_patch14_224",
        _UNI_V2_OPTIONS,
        resample="bilinear",
        needs_swiglu=True,
    ),
    FoundationPreset(
        "virchow",
        2560,
        ("paige-ai/Virchow",),
        "Apache-2.0",
        "vit_huge_patch14_224",
        _VIRCHOW_OPTIONS,
        pooling=_CLASS_AND_MEAN,
        needs_swiglu=True,
    ),
    FoundationPreset(
        "virchow2",
        2560,
        ("paige-ai/Virchow2",),
        _RESEARCH_LICENSE,
        "vit_huge_patch14_224",
        {**_VIRCHOW_OPTIONS, "reg_tokens": 4},
        pooling=_CLASS_AND_MEAN,
        needs_swiglu=True,
    ),
    # The official transform of GigaPath enlarges a tile to 256 pixels and crops the center 224.
    # Here the whole tile is resized to 224, so that no tissue is lost at its edge.
    FoundationPreset(
        "gigapath",
        1536,
        ("prov-gigapath/prov-gigapath",),
        "Apache-2.0, for research only by the terms of its hub page",
        "vit_giant_patch14_dinov2",
        _GIGAPATH_OPTIONS,
    ),
    FoundationPreset(
        "hoptimus0",
        1536,
        ("bioptimus/H-optimus-0",),
        "Apache-2.0",
        "vit_giant_patch14_reg4_dinov2",
        {},
        is_gated=False,
        statistics=_BIOPTIMUS_STATISTICS,
    ),
    FoundationPreset(
        "hoptimus1",
        1536,
        ("bioptimus/H-optimus-1",),
        _RESEARCH_LICENSE,
        "vit_giant_patch14_reg4_dinov2",
        {},
        statistics=_BIOPTIMUS_STATISTICS,
    ),
)


def _build_network(preset: FoundationPreset) -> nn.Module:
    timm = import_timm()
    options = {"img_size": 224, "num_classes": 0, **preset.options}
    if preset.needs_swiglu:
        from torch import nn

        options |= {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU}
    network: nn.Module = timm.create_model(preset.architecture, pretrained=False, **options)
    if preset.pooling == _CLASS_AND_MEAN:
        from sacmil.encoders._tokens import append_patch_mean

        append_patch_mean(network, skip=1 + preset.options.get("reg_tokens", 0))
    return network


def _make_card(preset: FoundationPreset) -> EncoderCard:
    mean, std = preset.statistics
    gated = " (gated: ask for access there)" if preset.is_gated else ""
    return EncoderCard(
        name=preset.name,
        width=preset.width,
        input_px=224,
        resample=preset.resample,
        mean=mean,
        std=std,
        pooling=preset.pooling,
        mpp=0.5,
        license=preset.license,
        weights=f"hub {preset.hub[0]}{gated}",
    )


def _make_source(preset: FoundationPreset) -> NetworkSource:
    build: Callable[[], nn.Module] = partial(_build_network, preset)
    origin = WeightsOrigin(hub=preset.hub, gated=preset.is_gated)
    return NetworkSource(card=_make_card(preset), origin=origin, build=build)


ENCODERS = tuple(map(_make_source, PRESETS))
