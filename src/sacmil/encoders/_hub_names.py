"""Parameter names of Hugging Face's vision transformers, as timm calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]
Rename = Callable[[State], State]

_COMMON = {
    r"^embeddings\.cls_token$": "cls_token",
    r"^embeddings\.position_embeddings$": "pos_embed",
    r"^embeddings\.patch_embeddings\.projection\.": "patch_embed.proj.",
    r"^encoder\.layer\.(\d+)\.": r"blocks.\1.",
    r"^layernorm\.": "norm.",
    r"\.attention\.output\.dense\.": ".attn.proj.",
}
_VIT = {
    **_COMMON,
    r"\.layernorm_before\.": ".norm1.",
    r"\.layernorm_after\.": ".norm2.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"\.output\.dense\.": ".mlp.fc2.",
}
_DINOV2 = {
    **_COMMON,
    r"\.layer_scale([12])\.lambda1$": r".ls\1.gamma",
    r"\.mlp\.weights_in\.": ".mlp.fc1.",
    r"\.mlp\.weights_out\.": ".mlp.fc2.",
}
_UNUSED = ("pooler.", "embeddings.mask_token")
_PREFIXES = re.compile(r"^(vit|dinov2)\.")
"""Of models with a head."""
_PARTS = ("query", "key", "value")


def rename_vit(state: State) -> State:
    """Return the state of transformers' ViTModel under timm's names."""
    return _rename(state, _VIT)


def rename_dinov2(state: State) -> State:
    """Return the state of transformers' Dinov2Model under timm's names, for images of 224 pixels.

    Position embeddings of larger images are resized once, as that model does for every image.
    """
    renamed = _rename(state, _DINOV2)
    if "pos_embed" in renamed and "patch_embed.proj.weight" in renamed:
        side = 224 // renamed["patch_embed.proj.weight"].shape[-1]
        renamed["pos_embed"] = _resize_positions(renamed["pos_embed"], side)
    return renamed


def _rename(state: State, patterns: Mapping[str, str]) -> State:
    found: State = {}
    for given, tensor in state.items():
        name = _PREFIXES.sub("", given)
        if name.startswith(_UNUSED):
            continue
        for pattern, replacement in patterns.items():
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    return _join_attention(found)


def _join_attention(state: State) -> State:
    """Join query, key and value, which timm keeps in one layer."""
    import torch

    pattern = re.compile(r"^(.*)\.attention\.attention\.query\.(weight|bias)$")
    joined = dict(state)
    for match in filter(None, map(pattern.match, state)):
        block, kind = match.groups()
        names = [f"{block}.attention.attention.{part}.{kind}" for part in _PARTS]
        if all(name in joined for name in names):
            joined[f"{block}.attn.qkv.{kind}"] = torch.cat([joined.pop(name) for name in names])
    return joined


def _resize_positions(positions: torch.Tensor, side: int) -> torch.Tensor:
    """Resize (1, 1 + P, D) for side x side patches; the class token keeps its own."""
    from torch.nn import functional as F

    count = positions.shape[1] - 1
    old = round(count**0.5)
    if count == side * side or old * old != count:
        return positions  # what does not fit is an error when it is loaded
    grid = positions[:, 1:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, (side, side), mode="bicubic", align_corners=False)
    flat = resized.permute(0, 2, 3, 1).reshape(1, side * side, -1).to(positions)
    import torch

    return torch.cat([positions[:, :1], flat], dim=1)
