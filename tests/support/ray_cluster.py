"""A Ray cluster of the tests' own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sacmil.parallel.local import list_import_folders


@contextmanager
def private_cluster() -> Iterator[Any]:
    """One core as a cluster that no other one on the machine sees, nor the other way round."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tempfile.mkdtemp(prefix="ray")  # a short path, as Ray puts its sockets there
        patch.setenv("RAY_TMPDIR", folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *list_import_folders()])
        )
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        try:
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def extra_node(cluster: Any) -> Iterator[Any]:
    """One more core, until it is removed."""
    node = cluster.add_node(num_cpus=1)
    try:
        yield node
    finally:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)


def busy_actors(node: Any) -> list[int]:
    """The processes that work on an item on a node."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if name.startswith(b"ray::_RayActor.run") and parent == raylet:
            found.append(int(process.name))
    return found
