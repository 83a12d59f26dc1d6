"""Official checkpoints: flattened, renamed to ours, and loaded; whole models or single blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sacmil.errors import ModelError, OptionError, suggest_names
from sacmil.nn.correlations import ChordMixerBlock, CycleBlock
from sacmil.nn.nystrom import NystromAttention
from sacmil.nn.peg import PEG, PPEG

_CONTAINERS = ("state_dict", "model_state_dict")
"""Keys under which training scripts save the parameters."""
_WRAPPERS = frozenset({"module", "_orig_mod"})
"""Path components that DataParallel and torch.compile add."""
_MAX_LISTED = 4


# --- one flat mapping from what was saved --------------------------------------------------------


class FlatCheckpoint(NamedTuple):
    """Parameters by official name, without the prefixes of wrappers."""

    state: dict[str, Tensor]
    names_in_file: dict[str, str]
    """Official name to the name in the file."""


def flatten_checkpoint(checkpoint: Any) -> FlatCheckpoint:
    """Return all parameters of a checkpoint, which may hold several state dicts and other data.

    Args:
        checkpoint: a state dict, a mapping of several, or one of these with numbers, lists and
            the state of an optimizer.
    """
    saved = dict(_iter_tensors(_unwrap_containers(checkpoint)))
    if not saved:
        holds = f"a {type(checkpoint).__name__}"
        if isinstance(checkpoint, Mapping):
            holds = list_names(map(str, checkpoint)) or "nothing"
        raise ModelError(
            f"it holds {holds} and no parameters; expected parameters by "
            "name, as torch.save(model.state_dict(), file) writes them"
        )
    saved_as: dict[str, str] = {}
    for key, name in _strip_wrappers(saved).items():
        if name in saved_as:
            raise ModelError(
                f"it has both {saved_as[name]} and {key}, which are the same parameter; expected "
                "one of them: remove the other"
            )
        saved_as[name] = key
    state = {name: torch.as_tensor(saved[key]) for name, key in saved_as.items()}
    for name, value in state.items():
        if not _is_stored(value):
            raise ModelError(
                f"{saved_as[name]} is sparse, or declares more numbers than it stores; expected "
                "ordinary tensors"
            )
    return FlatCheckpoint(state, saved_as)


def _is_stored(value: Tensor) -> bool:
    """Whether all values are in memory: a few bytes can declare a tensor larger than memory."""
    is_dense = value.layout == torch.strided
    return is_dense and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _unwrap_containers(found: Any) -> Any:
    """Return what is under state_dict or similar, or under model if no parameters are beside it."""
    while isinstance(found, Mapping):
        keys = [key for key in _CONTAINERS if isinstance(found.get(key), Mapping)]
        if not keys and isinstance(found.get("model"), Mapping):
            others = {key: value for key, value in found.items() if key != "model"}
            keys = [] if any(True for _ in _iter_tensors(others)) else ["model"]
        if not keys:
            break
        found = found[keys[0]]
    return found


def _iter_tensors(found: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(found, Mapping) or "param_groups" in found:  # an optimizer's state
        return
    for key, value in found.items():
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype != object):
            yield f"{prefix}{key}", value
        else:
            yield from _iter_tensors(value, f"{prefix}{key}.")


def _strip_wrappers(saved: Iterable[str]) -> dict[str, str]:
    """Map names in the file to those without wrappers and without Lightning's ``model.``."""
    names = {}
    for key in saved:
        names[key] = ".".join(part for part in key.split(".") if part not in _WRAPPERS) or key
    while all(name.startswith("model.") for name in names.values()):
        names = {key: name.removeprefix("model.") for key, name in names.items()}
    return names


def list_names(names: Iterable[str], separator: str = ", ") -> str:
    """Return the first few names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return separator.join(names[:_MAX_LISTED]) + rest


# --- under our names -----------------------------------------------------------------------------


class RenamedState(dict[str, Tensor]):
    """Parameters under our names, with their official ones.

    Args:
        state: parameters under official names.
        names: official prefix to our prefix; whole path components only.
        ignored: official prefixes of parameters that are not needed.
    """

    def __init__(
        self, state: Mapping[str, Tensor], names: Mapping[str, str], ignored: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._state, self._names = state, names
        self._sources: dict[str, str] = {}
        for key, value in state.items():
            if any(_has_prefix(key, prefix) for prefix in ignored):
                continue
            prefix = next((prefix for prefix in names if _has_prefix(key, prefix)), None)
            ours = key if prefix is None else names[prefix] + key[len(prefix) :]
            self[ours], self._sources[ours] = value, key

    def to_official_name(self, key: str) -> str:
        """Return the name in the checkpoint, existing or expected, of one of our names."""
        source = self._sources.get(key) or self._guess_official_name(key)
        return official_name(self._state, source)

    def _guess_official_name(self, key: str) -> str:
        """Choose among several official names the one most similar to those in the file."""
        found = [
            (len(ours), official + key[len(ours) :])
            for official, ours in self._names.items()
            if _has_prefix(key, ours)
        ]
        longest = max((length for length, _ in found), default=0)
        candidates = [name for length, name in found if length == longest] or [key]
        return max(candidates, key=self._count_shared_components)

    def _count_shared_components(self, name: str) -> int:
        """Return how many leading path components it shares with the nearest name in the file."""
        parts = name.split(".")
        prefixes = (".".join(parts[: n + 1]) for n in range(len(parts)))
        return sum(any(_has_prefix(key, prefix) for key in self._state) for prefix in prefixes)


def official_name(state: Mapping[str, Tensor], key: str) -> str:
    """Return the official name of a parameter, which users know."""
    return state.to_official_name(key) if isinstance(state, RenamedState) else key


def get_shape(state: Mapping[str, Tensor], name: str) -> torch.Size:
    """Return the shape of a parameter; ModelError if the checkpoint does not have it."""
    if name not in state:
        raise ModelError(f"{official_name(state, name)} is missing")
    return state[name].shape


def read_sizes(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return in_dim, num_classes and dim of a model with ``project`` and ``head``."""
    dim, in_dim = get_shape(state, "project.0.weight")
    return {"in_dim": in_dim, "num_classes": get_shape(state, "head.weight")[0], "dim": dim}


def _has_prefix(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(prefix + ".")


# --- into a module -------------------------------------------------------------------------------


def find_mismatches(
    module: nn.Module, state: Mapping[str, Tensor], names_in_file: Mapping[str, str]
) -> list[str]:
    """List parameters that are missing, unknown or of another size, by name in the checkpoint."""
    own = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in state.items()}
    named = {key: official_name(state, key) for key in own | given}
    named = {key: names_in_file.get(name, name) for key, name in named.items()}
    problems = [f"{named[key]} is missing" for key in own if key not in given]
    problems += [f"{named[key]} is not known" for key in given if key not in own]
    problems += [
        f"{named[key]} is {given[key]}, expected {own[key]}"
        for key in own
        if key in given and given[key] != own[key]
    ]
    problems += [
        f"{named[key]} holds values that are not finite"
        for key, value in state.items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    return problems


def load_parameters(
    module: nn.Module, state: Mapping[str, Tensor], names_in_file: Mapping[str, str]
) -> None:
    """Load parameters into a module; ModelError lists all mismatches."""
    problems = find_mismatches(module, state, names_in_file)
    if problems:
        raise ModelError(list_names(problems, "; "))
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:  # for example sparse or quantised tensors
        reason = " ".join(str(error).split())
        raise ModelError(f"its values cannot be copied ({reason})") from error


# --- single blocks --------------------------------------------------------------------------------

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
    ours = RenamedState(state, official.names)
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
