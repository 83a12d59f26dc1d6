"""Versions, devices and extras of this installation, read from the package's own metadata."""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from sacmil._version import __version__
from sacmil.errors import DeviceError

if TYPE_CHECKING:
    import torch

_DEVELOPER_EXTRAS = frozenset({"all", "dev"})


class Extra(NamedTuple):
    """An optional set of dependencies."""

    name: str
    missing: tuple[str, ...]
    """Packages of this extra that are not installed."""


def keep_freed_memory() -> None:
    """Let torch reuse the memory of one batch for the next; call it before torch is imported.

    On Arm, torch allocates with mimalloc, which returns freed memory to the system after 10 ms.
    The next batch then faults every page in again, a fifth of the time to encode a tile. A value
    that the user has set is kept.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")


def list_versions() -> dict[str, str]:
    """Return the versions of Python, sacmil and its dependencies; optional ones if installed."""
    packages = sorted({package for package, extra in _list_requirements() if extra != "dev"})
    found = {"sacmil": __version__, "python": f"{platform.python_version()} on {sys.platform}"}
    return found | {name: version for name in packages if (version := _find_version(name))}


def list_extras() -> list[Extra]:
    """Return the extras a user may install, with the missing packages of each."""
    packages_by_extra: dict[str, list[str]] = {}
    for package, extra in _list_requirements():
        if extra and extra not in _DEVELOPER_EXTRAS:
            packages_by_extra.setdefault(extra, []).append(package)
    return [
        Extra(name, tuple(package for package in packages if not _find_version(package)))
        for name, packages in packages_by_extra.items()
    ]


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus() -> int:
    """Return the number of GPUs that torch can use; 0 without torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return 0
    return torch.cuda.device_count()


def list_devices() -> list[str]:
    """Return a description of each device that a model can run on."""
    found = [f"cpu: {count_cores()} cores, {platform.machine()}"]
    if not _find_version("torch"):
        return [*found, "gpu: unknown, torch is not installed"]
    try:
        import torch
    except (ImportError, OSError) as error:
        return [*found, f"gpu: unknown, torch is installed but does not load ({error})"]
    for index in range(count_gpus()):
        properties = torch.cuda.get_device_properties(index)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        found.append(f"cuda:{index}: {properties.name}, {memory}, {_describe_kernels()}")
    if torch.backends.mps.is_available():
        found.append("mps: Apple GPU")
    return found if len(found) > 1 else [*found, "gpu: none that torch can use"]


def _describe_kernels() -> str:
    version = _find_version("triton")
    if version:
        return f"Triton {version} (SAC-MIL uses its fast kernels; SACMIL_KERNELS=off disables them)"
    return "no fast kernels for SAC-MIL (pip install triton)"


def select_device(name: str) -> torch.device:
    """Return the device of that name after a test; ``auto`` is the first GPU, or the CPU."""
    import torch

    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(
            f"the device {name!r} cannot be used ({reason}); expected auto, cpu, cuda:0, …: "
            "`sacmil doctor` lists the devices"
        ) from error
    return device


def _list_requirements() -> list[tuple[str, str | None]]:
    """Return (package, extra or None) for every dependency in pyproject.toml."""
    try:
        lines = metadata.requires("sacmil") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return []
    pairs = []
    for line in lines:
        package = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if package and package.group() != "sacmil":
            pairs.append((package.group(), extra.group(1) if extra else None))
    return pairs


def _find_version(package: str) -> str | None:
    try:
        return _read_version(package)
    except metadata.PackageNotFoundError:
        return None


@cache  # every training job lists the versions; what is missing is searched again
def _read_version(package: str) -> str:
    return metadata.version(package)
