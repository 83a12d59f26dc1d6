"""A stand-in for CUDA graphs and the GPU's memory.

It repeats the captured call at every replay, on the memory that it was captured with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from sacmil.kernels.cuda_graphs import GraphCache
from sacmil.models import _captured
from sacmil.training import capture


class RepeatingGraph:
    """Stands in for a graph: computes nothing when captured, and the call at every replay."""

    def __init__(self, call, own: Mapping[str, Tensor]) -> None:
        self.call, self.own = call, own
        self.returned: dict[str, Tensor] = {}

    def replay(self) -> None:
        self.returned.update(self.call(self.own))


class Memory:
    """The GPU's memory as a stand-in sees it: every graph takes one byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.total = 1000, 1000
        self.captures, self.tries, self.watched = 0, 0, 0
        self.failure: Exception | None = None
        self.obstacles: list[str] = []
        monkeypatch.setattr(GraphCache, "_record", lambda cache, *given: self.record(*given))
        monkeypatch.setattr(GraphCache, "_find_free", lambda cache: self.free)
        monkeypatch.setattr(GraphCache, "_find_total", lambda cache: self.total)
        for module in (capture, _captured):
            monkeypatch.setattr(module, "watch_obstacles", self.watch)

    def record(self, call, own: Mapping[str, Tensor]) -> tuple[RepeatingGraph, dict[str, Tensor]]:
        self.tries += 1
        if self.failure:
            raise self.failure
        self.captures += 1
        self.free -= 1
        graph = RepeatingGraph(call, own)
        return graph, graph.returned

    @contextmanager
    def watch(self, device: torch.device) -> Iterator[list[str]]:
        self.watched += 1
        yield self.obstacles
