"""The devices that a run trains on, checked before training."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from sacmil.arguments import to_integer
from sacmil.environment import select_device
from sacmil.errors import ConfigError, shorten_value

Devices = str | torch.device | Iterable[str | torch.device]


def resolve_devices(devices: Devices, per_gpu: int, engine: str) -> tuple[str, ...]:
    """Return the device of each job at a time.

    Args:
        devices: one or more; auto is all GPUs, or the CPU.
        per_gpu: jobs at once on each GPU.
        engine: with ray, the devices are those of other machines and are not checked.
    """
    count = to_integer("per_gpu", per_gpu, 1)
    if devices == "auto":
        devices = _list_gpus() or ["cpu"]
    listed = _list_names(devices)
    if engine != "ray":
        check_devices(listed)
    return listed + tuple(name for name in listed if name.startswith("cuda")) * (count - 1)


def check_devices(names: Iterable[str]) -> None:
    """Reject devices that are missing."""
    # GPUs that exist are not tested: a test takes memory of each in this process.
    for name in {*names} - {"auto", "cpu", *_list_gpus()}:
        select_device(name)


def resolve_device(device: str | torch.device) -> str:
    """Return the name of one device, after a check."""
    if not isinstance(device, str | torch.device):
        given = shorten_value(device)
        raise ConfigError(f"`device` is {given}; expected a name: auto, cpu, cuda:0, …")
    check_devices([str(device)])
    return str(device)


def _list_gpus() -> list[str]:
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def _list_names(devices: Devices) -> tuple[str, ...]:
    given = [devices] if isinstance(devices, str | torch.device) else devices
    listed = list(given) if isinstance(given, Iterable) else []
    if not listed or not all(isinstance(name, str | torch.device) for name in listed):
        raise ConfigError(
            f"`devices` is {shorten_value(devices)}; expected one device or more: auto, cpu, "
            "cuda:0, …"
        )
    return tuple(map(str, listed))
