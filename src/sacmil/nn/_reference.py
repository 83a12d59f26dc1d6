"""Loads official checkpoints of single blocks into our blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy.typing as npt
from torch import Tensor, nn

from sacmil.errors import ModelError, OptionError, suggest_names
from sacmil.nn._checkpoint import flatten_checkpoint, load_parameters, rename_parameters
from sacmil.nn.chordmixer import ChordMixerBlock
from sacmil.nn.cyclemlp import CycleBlock
from sacmil.nn.nystrom import NystromAttention
from sacmil.nn.peg import PEG, PPEG

State = dict[str, Tensor]


class _OfficialBlock(NamedTuple):
    anchor: str
    """A name that every checkpoint has once; its prefix is the prefix of all parameters."""
    names: dict[str, str]
    """Official prefix to ours."""
    build: Callable[..., nn.Module]
    """Builds the block from the parameters and options."""


def load_reference_block(
    name: str, state_dict: Mapping[str, Tensor | npt.NDArray[Any]], **options: Any
) -> nn.Module:
    """Return our block with official weights, in evaluation mode.

    Args:
        name: nystrom, chordmixer, cyclemlp, peg or ppeg.
        state_dict: parameters of one block under official names, with or without a prefix.
        options: arguments that shapes do not show, such as landmarks or legacy_slice.
    """
    if name not in _BLOCKS:
        raise ModelError(f"there is no official block {name!r}; {suggest_names(name, _BLOCKS)}")
    official = _BLOCKS[name]
    try:
        return _load_block(official, flatten_checkpoint(state_dict).state, options).eval()
    except OptionError:
        raise
    except ModelError as error:
        raise ModelError(f"this is not one official {name}: {error}") from error


def _load_block(official: _OfficialBlock, state: State, options: Mapping[str, Any]) -> nn.Module:
    state, saved_as = _strip_prefix(state, official.anchor)
    try:
        block = official.build(state, **options)
    except TypeError as error:
        raise OptionError(f"there is no such option: {error}") from error
    except KeyError as error:
        raise ModelError(f"{error.args[0]} is missing") from error
    except (ValueError, IndexError, RuntimeError) as error:
        raise ModelError(f"its parameters have other shapes ({error})") from error
    # CycleMLP's sampling positions follow from its definition.
    state = {key: value for key, value in state.items() if not key.endswith(".offset")}
    ours = rename_parameters(state, official.names)
    ours.update({key: _flatten_convolution(key, value) for key, value in ours.items()})
    load_parameters(block, ours, saved_as)
    return block


def _strip_prefix(state: State, anchor: str) -> tuple[State, dict[str, str]]:
    """Remove the prefix of the anchor from all names; also return the original names."""
    prefixes = [key.removesuffix(anchor) for key in state if f".{key}".endswith(f".{anchor}")]
    if len(prefixes) != 1:
        found = f"{len(prefixes)} parameters {anchor!r}" if prefixes else f"no {anchor!r}"
        raise ModelError(f"there is {found}, expected one")
    saved_as = {key.removeprefix(prefixes[0]): key for key in state}
    return {key: state[saved] for key, saved in saved_as.items()}, saved_as


def _flatten_convolution(key: str, value: Tensor) -> Tensor:
    """Convert a 1 x 1 convolution to a linear layer; CycleMLP has such convolutions."""
    return value.flatten(1) if key.startswith("mix.along") and value.ndim == 4 else value


def _build_nystrom(state: State, **options: Any) -> NystromAttention:
    heads, _, taps, _ = state["res_conv.weight"].shape
    inner, dim = state["to_qkv.weight"].shape
    sizes = {"heads": heads, "head_dim": inner // 3 // heads, "taps": taps}
    return NystromAttention(dim, **sizes | options)


def _build_chordmixer(state: State, **options: Any) -> ChordMixerBlock:
    hidden, dim = state["mix.fc1.weight"].shape
    return ChordMixerBlock(dim, **{"hidden": hidden} | options)


def _build_cyclemlp(state: State, **options: Any) -> CycleBlock:
    found = {"reweight": "attn.reweight.fc1.weight" in state}
    return CycleBlock(state["norm1.weight"].shape[0], **found | options)


def _build_peg(state: State, **options: Any) -> PEG:
    dim, _, *kernel = state["proj.weight"].shape
    return PEG(dim, **{"kernels": [tuple(kernel)]} | options)


def _build_ppeg(state: State, **options: Any) -> PPEG:
    return PPEG(state["proj.weight"].shape[0], **options)


_PEG_NAMES = {
    f"{official}.{kind}": f"{ours}.{index}"
    for index, official in enumerate(("proj", "proj1", "proj2"))
    for kind, ours in (("weight", "weights"), ("bias", "biases"))
}

_BLOCKS = {
    "nystrom": _OfficialBlock(
        "to_qkv.weight",
        {"to_qkv": "qkv", "to_out.0": "out", "res_conv": "residual"},
        _build_nystrom,
    ),
    "chordmixer": _OfficialBlock(
        "prenorm.weight", {"mix.fc1": "fc1", "mix.fc2": "fc2"}, _build_chordmixer
    ),
    "cyclemlp": _OfficialBlock(
        "norm1.weight",
        {
            "attn.sfc_h": "mix.along_row",
            "attn.sfc_w": "mix.along_column",
            "attn.mlp_c": "mix.channel",
            "attn.proj": "mix.proj",
            "attn.reweight.fc1": "mix.reweight.fc1",
            "attn.reweight.fc2": "mix.reweight.fc2",
        },
        _build_cyclemlp,
    ),
    "peg": _OfficialBlock("proj.weight", _PEG_NAMES, _build_peg),
    "ppeg": _OfficialBlock("proj.weight", _PEG_NAMES, _build_ppeg),
}
