"""The pathology foundation models that timm builds, from UNI to Midnight.

Files of the hub load as they are: most have timm's parameter names, those of Hugging Face's
transformers are renamed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._hub_names import Rename, rename_dinov2, rename_vit
from sacmil.encoders._network import HUB_FILES, NetworkSource, WeightsOrigin
from sacmil.encoders.timm_model import import_timm

if TYPE_CHECKING:
    import torch
    from torch import nn

_IMAGENET_STATISTICS = EncoderCard.mean, EncoderCard.std
_BIOPTIMUS_STATISTICS = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)
_HALF_STATISTICS = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_CLASS_AND_MEAN = "class token, then the mean of the patch tokens"
_SHARED_OPTIONS = {"init_values": 1e-5, "dynamic_img_size": True}
_VIRCHOW_OPTIONS = {**_SHARED_OPTIONS, "mlp_ratio": 5.3375, "global_pool": ""}
_UNI_V2_SIZES = {"patch_size": 14, "depth": 24, "num_heads": 24, "embed_dim": 1536, "reg_tokens": 8}


class VisionTransformer(NamedTuple):
    """A model of timm with the options it is created with."""

    name: str
    options: dict[str, Any]
    needs_swiglu: bool = False
    """Whether timm needs options for SwiGLU layers; its giant models have them already."""


class FoundationPreset(NamedTuple):
    """The properties in which foundation models differ."""

    name: str
    width: int
    architecture: VisionTransformer
    hub: tuple[str, ...]
    license: str = "CC-BY-NC-ND-4.0"
    is_gated: bool = True
    resample: str = "bicubic"
    pooling: str = "class token"
    statistics: tuple[tuple[float, float, float], tuple[float, float, float]] = _IMAGENET_STATISTICS
    rename: Rename | None = None
    files: tuple[str, ...] = HUB_FILES


_UNI_V1 = VisionTransformer("vit_large_patch16_224", _SHARED_OPTIONS)
_UNI_V2 = VisionTransformer(
    "vit_giant_patch14_224",
    {**_SHARED_OPTIONS, **_UNI_V2_SIZES, "mlp_ratio": 2.66667 * 2, "no_embed_class": True},
    needs_swiglu=True,
)
_VIRCHOW = VisionTransformer("vit_huge_patch14_224", _VIRCHOW_OPTIONS, needs_swiglu=True)
_VIRCHOW2 = _VIRCHOW._replace(options={**_VIRCHOW_OPTIONS, "reg_tokens": 4})
_GIGAPATH = VisionTransformer("vit_giant_patch14_dinov2", {"patch_size": 16, "mlp_ratio": 5.33334})
_HOPTIMUS = VisionTransformer("vit_giant_patch14_reg4_dinov2", {})
_H0_MINI = VisionTransformer(
    "vit_base_patch14_reg4_dinov2",
    {"mlp_ratio": 5.33334, "dynamic_img_size": True},
    needs_swiglu=True,
)
_GPFM = VisionTransformer("vit_large_patch14_dinov2", {})
_MIDNIGHT = VisionTransformer("vit_giant_patch14_dinov2", {"global_pool": ""})
# Its position embeddings are those of images of 518 pixels, resized for every image.
_KAIKO_L14 = VisionTransformer(
    "vit_large_patch14_reg4_dinov2", {"img_size": 518, "dynamic_img_size": True}
)
_PHIKON_V2 = VisionTransformer("vit_large_patch16_224", {"init_values": 1e-5})


def _make_kaiko_preset(
    name: str, width: int, architecture: VisionTransformer, hub: str
) -> FoundationPreset:
    return FoundationPreset(
        name,
        width,
        architecture,
        (f"1aurent/{hub}.kaiko_ai_towards_large_pathology_fms",),
        "kaiko, non-commercial",
        is_gated=False,
        resample="bilinear",
        statistics=_HALF_STATISTICS,
    )


PRESETS = (
    FoundationPreset(
        "uni_v1", 1024, _UNI_V1, ("MahmoodLab/UNI", "MahmoodLab/uni"), resample="bilinear"
    ),
    FoundationPreset("uni_v2", 1536, _UNI_V2, ("MahmoodLab/UNI2-h",), resample="bilinear"),
    FoundationPreset(
        "virchow", 2560, _VIRCHOW, ("paige-ai/Virchow",), "Apache-2.0", pooling=_CLASS_AND_MEAN
    ),
    FoundationPreset("virchow2", 2560, _VIRCHOW2, ("paige-ai/Virchow2",), pooling=_CLASS_AND_MEAN),
    # The official transform of GigaPath enlarges a tile to 256 pixels and crops the center 224.
    # Here the whole tile is resized to 224, so that no tissue is lost at its edge.
    FoundationPreset(
        "gigapath",
        1536,
        _GIGAPATH,
        ("prov-gigapath/prov-gigapath",),
        "Apache-2.0, for research only by the terms of its hub page",
    ),
    FoundationPreset(
        "hoptimus0",
        1536,
        _HOPTIMUS,
        ("bioptimus/H-optimus-0",),
        "Apache-2.0",
        statistics=_BIOPTIMUS_STATISTICS,
    ),
    FoundationPreset(
        "hoptimus1", 1536, _HOPTIMUS, ("bioptimus/H-optimus-1",), statistics=_BIOPTIMUS_STATISTICS
    ),
    FoundationPreset(
        "h0_mini", 768, _H0_MINI, ("bioptimus/H0-mini",), statistics=_BIOPTIMUS_STATISTICS
    ),
    FoundationPreset(
        "midnight",
        3072,
        _MIDNIGHT,
        ("kaiko-ai/midnight",),
        "MIT",
        is_gated=False,
        resample="bilinear",
        pooling=_CLASS_AND_MEAN,
        statistics=_HALF_STATISTICS,
        rename=rename_dinov2,
    ),
    FoundationPreset(
        "gpfm",
        1024,
        _GPFM,
        ("majiabo/GPFM",),
        "MIT on its hub page, CC-BY-NC-ND-4.0 in its repository",
        is_gated=False,
        files=("GPFM.pth",),
    ),
    FoundationPreset(
        "phikon",
        768,
        VisionTransformer("vit_base_patch16_224", {}),
        ("owkin/phikon",),
        "Owkin, non-commercial",
        is_gated=False,
        resample="bilinear",
        rename=rename_vit,
    ),
    FoundationPreset(
        "phikon_v2",
        1024,
        _PHIKON_V2,
        ("owkin/phikon-v2",),
        "Owkin, non-commercial",
        is_gated=False,
        rename=rename_dinov2,
    ),
    _make_kaiko_preset(
        "kaiko_vits8", 384, VisionTransformer("vit_small_patch8_224", {}), "vit_small_patch8_224"
    ),
    _make_kaiko_preset(
        "kaiko_vits16", 384, VisionTransformer("vit_small_patch16_224", {}), "vit_small_patch16_224"
    ),
    _make_kaiko_preset(
        "kaiko_vitb8", 768, VisionTransformer("vit_base_patch8_224", {}), "vit_base_patch8_224"
    ),
    _make_kaiko_preset(
        "kaiko_vitb16", 768, VisionTransformer("vit_base_patch16_224", {}), "vit_base_patch16_224"
    ),
    _make_kaiko_preset("kaiko_vitl14", 1024, _KAIKO_L14, "vit_large_patch14_reg4_224"),
    FoundationPreset(
        "lunit_vits8",
        384,
        VisionTransformer("vit_small_patch8_224", {}),
        ("1aurent/vit_small_patch8_224.lunit_dino",),
        "Lunit, non-commercial",
        is_gated=False,
    ),
    FoundationPreset(
        "lunit_vits16",
        384,
        VisionTransformer("vit_small_patch16_224", {}),
        ("1aurent/vit_small_patch16_224.lunit_dino",),
        "Lunit, non-commercial",
        is_gated=False,
        statistics=_HALF_STATISTICS,
    ),
    FoundationPreset("mstar", 1024, _UNI_V1, ("Wangyh/mSTAR",), resample="bilinear"),
    FoundationPreset(
        "pathorchestra", 1024, _UNI_V1, ("AI4Pathology/PathOrchestra",), resample="bilinear"
    ),
)


def _build_network(preset: FoundationPreset) -> nn.Module:
    timm = import_timm()
    name, given, needs_swiglu = preset.architecture
    options = {"img_size": 224, "num_classes": 0, **given}
    if needs_swiglu:
        from torch import nn

        options |= {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU}
    network: nn.Module = timm.create_model(name, pretrained=False, **options)
    if preset.pooling == _CLASS_AND_MEAN:
        _append_patch_mean(network, skip=1 + given.get("reg_tokens", 0))
    return network


def _append_patch_mean(network: nn.Module, *, skip: int) -> None:
    """Make a network return the class token and the mean of the patch tokens.

    A hook instead of a wrapper, so that the parameters keep their official names.

    Args:
        network: returns (B, T, D) before and (B, 2 D) after.
        skip: number of tokens before the first patch: the class token and the registers.
    """
    import torch

    def pool(_: nn.Module, __: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens[:, 0], tokens[:, skip:].mean(dim=1)], dim=1)

    network.register_forward_hook(pool)


def _make_source(preset: FoundationPreset) -> NetworkSource:
    gated = " (gated: ask for access there)" if preset.is_gated else ""
    card = EncoderCard(
        name=preset.name,
        width=preset.width,
        resample=preset.resample,
        mean=preset.statistics[0],
        std=preset.statistics[1],
        pooling=preset.pooling,
        license=preset.license,
        gated=preset.is_gated,
        verified="architecture",
        weights=f"hub {preset.hub[0]}{gated}",
    )
    origin = WeightsOrigin(hub=preset.hub, gated=preset.is_gated, files=preset.files)
    build = partial(_build_network, preset)
    return NetworkSource(card=card, origin=origin, build=build, rename=preset.rename)


ENCODERS = tuple(map(_make_source, PRESETS))
