"""What the first training step needs, loaded while worker processes check the bags.

torch's optimizers import its compiler, and the libraries of a GPU start when they are first used.
Together that takes one to six seconds.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import torch

from sacmil.kernels.config import can_run_kernels

_COMPILER = "torch._dynamo"

_log = logging.getLogger(__name__)


@contextmanager
def warm_up(device: str) -> Iterator[None]:
    """Load in a thread what a device needs, and wait for it in the end.

    The thread changes no random numbers. What fails in it fails again where it is needed.
    """
    thread = Thread(target=_load, args=(device,), name="warm-up")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _load(device: str) -> None:
    try:
        if device != "cpu":
            x = torch.ones(16, 16, device=device)
            x @ x  # starts cuBLAS
            can_run_kernels(x)
        importlib.import_module(_COMPILER)
    except Exception as error:
        _log.debug("warm-up of %s failed: %s", device, error)
