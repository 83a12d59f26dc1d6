"""Official checkpoints of single blocks: their parameter names in, our block out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sacmil.errors import ModelError, OptionError, suggestion
from sacmil.nn.chordmixer import ChordMixerBlock
from sacmil.nn.cyclemlp import CycleBlock
from sacmil.nn.nystrom import NystromAttention
from sacmil.nn.peg import PEG, PPEG

State = dict[str, Tensor]


class _Official(NamedTuple):
    anchor: str
    """A name every checkpoint has once; what stands before it stands before all."""
    names: dict[str, str]
    """Official names, whole or without their last part, to ours."""
    build: Callable[..., nn.Module]
    """From the parameters, and what cannot be read from them, to the block."""


def load_reference_block(
    name: str, state_dict: Mapping[str, Tensor | npt.NDArray[Any]], **options: Any
) -> nn.Module:
    """Our block with the weights of the official one, ready to use.

    Args:
        name: nystrom, chordmixer, cyclemlp, peg or ppeg.
        state_dict: parameters of one block under official names, with or without a prefix.
        options: what cannot be read from shapes, such as landmarks or legacy_slice.
    """
    if name not in _BLOCKS:
        raise ModelError(f"there is no official block {name!r}; {suggestion(name, _BLOCKS)}")
    official = _BLOCKS[name]
    state = {key: torch.as_tensor(value) for key, value in state_dict.items()}
    state = _without_prefix(state, official.anchor, name)
    try:
        block = official.build(state, **options)
        block.load_state_dict(_renamed(state, official.names))
    except TypeError as error:
        raise OptionError(f"{name} has no such option: {error}") from error
    except (RuntimeError, KeyError) as error:
        raise ModelError(f"this is not an official {name}: {error}") from error
    return block.eval()


def _without_prefix(state: State, anchor: str, name: str) -> State:
    prefixes = [key.removesuffix(anchor) for key in state if f".{key}".endswith(f".{anchor}")]
    if len(prefixes) != 1:
        found = f"{len(prefixes)} parameters {anchor!r}" if prefixes else f"no {anchor!r}"
        raise ModelError(f"this is not one official {name}: there is {found}, expected one")
    return {key.removeprefix(prefixes[0]): value for key, value in state.items()}


def _renamed(state: State, names: Mapping[str, str]) -> State:
    out = {}
    for key, value in state.items():
        path, _, last = key.rpartition(".")
        if last != "offset":  # CycleMLP's sampling positions, which follow from its definition
            out[names.get(key, f"{names.get(path, path)}.{last}")] = value
    return {key: _flat(key, value) for key, value in out.items()}


def _flat(key: str, value: Tensor) -> Tensor:
    """A 1 x 1 convolution as the linear layer it is; CycleMLP writes its layers so."""
    return value.flatten(1) if key.startswith("mix.along") and value.ndim == 4 else value


def _nystrom(state: State, **options: Any) -> NystromAttention:
    heads, _, taps, _ = state["res_conv.weight"].shape
    inner, dim = state["to_qkv.weight"].shape
    sizes = {"heads": heads, "head_dim": inner // 3 // heads, "taps": taps}
    return NystromAttention(dim, **sizes | options)


def _chordmixer(state: State, **options: Any) -> ChordMixerBlock:
    hidden, dim = state["mix.fc1.weight"].shape
    return ChordMixerBlock(dim, **{"hidden": hidden} | options)


def _cyclemlp(state: State, **options: Any) -> CycleBlock:
    found = {"reweight": "attn.reweight.fc1.weight" in state}
    return CycleBlock(state["norm1.weight"].shape[0], **found | options)


def _peg(state: State, **options: Any) -> PEG:
    dim, _, *kernel = state["proj.weight"].shape
    return PEG(dim, **{"kernels": [tuple(kernel)]} | options)


def _ppeg(state: State, **options: Any) -> PPEG:
    return PPEG(state["proj.weight"].shape[0], **options)


_PEG_NAMES = {
    f"{official}.{kind}": f"{ours}.{index}"
    for index, official in enumerate(("proj", "proj1", "proj2"))
    for kind, ours in (("weight", "weights"), ("bias", "biases"))
}

_BLOCKS = {
    "nystrom": _Official(
        "to_qkv.weight", {"to_qkv": "qkv", "to_out.0": "out", "res_conv": "residual"}, _nystrom
    ),
    "chordmixer": _Official("prenorm.weight", {"mix.fc1": "fc1", "mix.fc2": "fc2"}, _chordmixer),
    "cyclemlp": _Official(
        "norm1.weight",
        {
            "attn.sfc_h": "mix.along_row",
            "attn.sfc_w": "mix.along_column",
            "attn.mlp_c": "mix.channel",
            "attn.proj": "mix.proj",
            "attn.reweight.fc1": "mix.reweight.fc1",
            "attn.reweight.fc2": "mix.reweight.fc2",
        },
        _cyclemlp,
    ),
    "peg": _Official("proj.weight", _PEG_NAMES, _peg),
    "ppeg": _Official("proj.weight", _PEG_NAMES, _ppeg),
}
