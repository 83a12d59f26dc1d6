"""The last bits of a result: what decides about them, and a hash of those of a model."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import torch

_NAMES = ("model name", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that name a processor, on x86 and on Arm."""


def describe_arithmetic() -> dict[str, str]:
    """Where all of this is equal, equal inputs give equal bits."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": " ".join([platform.machine(), *_read_processor()]),
    }


def hash_tensors(model: torch.nn.Module) -> str:
    """SHA-256 of the names and bits of all tensors of a model."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()


def _read_processor() -> list[str]:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    values = dict(reversed([line.split(":", 1) for line in lines if line.startswith(_NAMES)]))
    return [value.strip() for _, value in sorted(values.items())]
