"""Encoders that are torch networks: finds their weights and chooses the engine."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil._version import __version__
from sacmil.encoders import onnx_file
from sacmil.encoders._base import Encoder, EncoderCard, EncoderRequest
from sacmil.encoders._export import export_network
from sacmil.encoders._weights import (
    WeightsOrigin,
    cache_folder,
    encoder_file_name,
    get_weights,
    hash_weights,
    read_state,
)
from sacmil.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn

RANDOM_HASH = "random"
"""Stands in place of a hash for random weights."""


@dataclass(frozen=True, kw_only=True)
class NetworkSource:
    """A torch network without its weights."""

    card: EncoderCard
    origin: WeightsOrigin
    build: Callable[[], nn.Module]
    """Builds the network: normalised (B, 3, P, P) in, (B, width) out."""
    unused_prefixes: tuple[str, ...] = ()
    """Prefixes of parameters in official files that features do not need."""
    preferred_engine: str = "torch"
    """The engine on x86 CPUs, if it is installed; elsewhere torch is faster."""

    def find_weights(self) -> Path:
        """Return the file of weights; if there is none, an error says how to get it."""
        return self._find_file(EncoderRequest())

    def load(self, request: EncoderRequest) -> Encoder:
        """Load the encoder."""
        if self._choose_engine(request) == "torch":
            return self._load_on_torch(request)
        return self._load_on_onnxruntime(request)

    def build_module(self, request: EncoderRequest) -> tuple[nn.Module, str]:
        """Return the network with its weights, and their hash."""
        if request.random_weights:
            return build_random_network(self.build), RANDOM_HASH
        file = self._find_file(request)
        return self._load_module(file), hash_weights(file)

    def export(self, request: EncoderRequest, folder: Path) -> Path:
        """Write the network's graph and card into a folder, completely or not at all."""
        _check_torch(f"exporting {self.card.name}")
        network, digest = self.build_module(request)
        return export_network(network, self.card, digest, folder)

    def _choose_engine(self, request: EncoderRequest) -> str:
        if request.engine:
            return request.engine
        is_plain = request.device == "cpu" and request.precision in (None, "float32")
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        fastest = self.preferred_engine if is_x86 or not _is_installed("torch") else "torch"
        return fastest if is_plain and _is_installed(fastest) else "torch"

    def _load_on_torch(self, request: EncoderRequest) -> Encoder:
        _check_torch(f"the encoder {self.card.name}")
        from sacmil.encoders._torch import TorchEncoder

        network, digest = self.build_module(request)
        return TorchEncoder(network, self.card, digest, request)

    def _load_on_onnxruntime(self, request: EncoderRequest) -> Encoder:
        """Load the exported graph from the cache folder; export it there first if needed."""
        if request.precision not in (None, "float32"):
            raise EncoderError(
                f"engine onnxruntime computes in float32, not {request.precision}; "
                "use engine torch, or leave the precision out"
            )
        digest = RANDOM_HASH if request.random_weights else hash_weights(self._find_file(request))
        name = f"{encoder_file_name(self.card.name)}-{digest}-{__version__}"
        folder = cache_folder() / "onnx" / name
        if not folder.is_dir():
            if request.engine is None and not _is_installed("onnx"):
                return self._load_on_torch(request)
            self.export(request, folder)
        return onnx_file.find(str(folder)).load(EncoderRequest(device=request.device))

    def _find_file(self, request: EncoderRequest) -> Path:
        return get_weights(
            self.card.name, self.origin, user_path=request.weights, download=request.download
        )

    def _load_module(self, file: Path) -> nn.Module:
        import torch

        state = {
            name: tensor
            for name, tensor in read_state(file).items()
            if not name.startswith(self.unused_prefixes)
        }
        # Built on the meta device, the network takes the file's tensors without a copy.
        with torch.device("meta"):
            network = self.build()
        _load_state(network, state, file, self.card.name)
        if any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers())):
            network = self.build()  # it computes buffers that are not in files
            _load_state(network, state, file, self.card.name)
        return network.float()


def build_random_network(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network with random weights of a fixed seed, for tests and benchmarks only."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(".gamma"):  # fresh layer scales of 1e-5 would hide the image
                parameter.fill_(1.0)
    return network


def _load_state(network: nn.Module, state: dict[str, torch.Tensor], file: Path, name: str) -> None:
    try:
        result = network.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:  # shapes that do not fit
        reason = str(error).strip().splitlines()[-1].strip()
        raise EncoderError(f"{file}: these are not the weights of {name} ({reason})") from error
    found = {"missing": result.missing_keys, "not expected": result.unexpected_keys}
    problems = [f"{len(names)} {kind}, e.g. {names[0]}" for kind, names in found.items() if names]
    if problems:
        raise EncoderError(
            f"{file}: these are not the weights of {name}: parameter names {'; '.join(problems)}; "
            "expected the official state dict"
        )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # an import hook blocks it
        return False


def _check_torch(purpose: str) -> None:
    if not _is_installed("torch"):
        raise MissingExtraError("torch", purpose)
