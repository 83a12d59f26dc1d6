"""Threads that call encoders: one per core, several per GPU so that the GPU never waits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

import numpy as np
import numpy.typing as npt

from sacmil.encoders import Encoder
from sacmil.errors import EncoderError, SacMILError

Features = npt.NDArray[np.float32]


class EncoderThreads:
    """Encodes batches in parallel; use it in a ``with`` block.

    Args:
        encoders: the same encoder on each device.
        threads: batches that each encoder encodes at the same time.
    """

    def __init__(self, encoders: Sequence[Encoder], threads: int) -> None:
        self.count = threads * len(encoders)
        self._pools = [
            (encoder, ThreadPoolExecutor(threads, thread_name_prefix="encode"))
            for encoder in encoders
        ]
        self._next_pool = itertools.cycle(self._pools)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for encoder, pool in self._pools:
            self._stack.enter_context(encoder.concurrent_mode())
            self._stack.callback(pool.shutdown, cancel_futures=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(self, tiles: npt.NDArray[np.uint8]) -> Future[Features]:
        """Start encoding a batch."""
        encoder, pool = next(self._next_pool)
        return pool.submit(_encode_batch, encoder, tiles)


def _encode_batch(encoder: Encoder, tiles: npt.NDArray[np.uint8]) -> Features:
    if not len(tiles):
        return np.empty((0, encoder.card.width), np.float32)
    try:
        return encoder.encode(tiles)
    except (SacMILError, KeyboardInterrupt):
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise EncoderError(
            f"{encoder.card.name} failed on a batch of {len(tiles)} tiles "
            f"({type(error).__name__}: {detail}); a smaller `batch_size` needs less memory"
        ) from error
