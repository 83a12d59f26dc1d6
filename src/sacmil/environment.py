"""Versions, devices and extras of this installation, read from the package's own metadata."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
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


def find_free_memory() -> float:
    """Return the bytes of memory that this process may still take; 0 if they are unknown.

    In a container or a job of a cluster its limit counts.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(float(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
    return min(free * 1024, *_list_free_in_groups())


def _list_free_in_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[float]:
    """Return what the limits of this process's control groups leave, which Slurm and Docker set."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return [math.inf]
    name = next((line[3:] for line in lines if line.startswith("0::")), "/").lstrip("/")
    inner = root / name
    folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return [math.inf, *map(_read_free_in_group, folders)]


def _read_free_in_group(folder: Path) -> float:
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return math.inf
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        statistics = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        files = next((int(v) for k, v in map(str.split, statistics) if k == "inactive_file"), 0)
        return max(0.0, float(int(limit) - used + files))  # cached files give way
    except (OSError, ValueError):
        return math.inf


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
