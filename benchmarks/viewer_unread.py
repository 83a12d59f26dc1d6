"""How long others wait for the viewer's list of slides while many clients do not read an outline.

Run: python -m benchmarks.viewer_unread --clients 300 --megabytes 30
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.viewer import SERVER, peak_mib
from sacmil.results import ModelInfo, Results, SlideResult, StoredPrediction, write_results


def main(arguments: list[str] | None = None) -> None:
    """Print the delay of small requests and the memory of the server and its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args(arguments)
    print(
        f"viewer, {options.clients:,} clients that request an outline of {options.megabytes} MB "
        "without gzip and do not read"
    )
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder), options.megabytes * 10**6)
        with subprocess.Popen(
            [sys.executable, "-c", SERVER, folder], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            port = urlsplit(server.stdout.readline()).port or 0
            idle = [_time_list(port) for _ in range(20)]
            delays = _time_during_flood(port, options.clients, options.seconds)
            memory = peak_mib(server.pid)
            server.send_signal(signal.SIGINT)
    print(f"  list, idle      longest {max(idle):6.3f} s")
    print(f"  list, flooded   longest {max(delays):6.3f} s of {len(delays)} requests")
    print(f"  peak memory     {memory:6.0f} MiB")


def _make(folder: Path, size: int) -> None:
    """A results folder with one outline of about so many bytes."""
    chance = random.Random(0)
    ring = [[round(chance.uniform(0, 9999), 2) for _ in range(2)] for _ in range(size // 17)]
    polygon = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    (folder / "truth.geojson").write_text(json.dumps(polygon, separators=(",", ":")))
    slides = (
        SlideResult("slide", (StoredPrediction("model", (0.5, 0.5)),), truth="truth.geojson"),
    )
    write_results(folder, Results(("a", "b"), (ModelInfo("model", "00"),), slides))


def _time_during_flood(port: int, clients: int, seconds: float) -> list[float]:
    request = f"GET /api/slides/0/truth HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    for each in sockets:
        each.sendall(request)
    delays = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        delays.append(_time_list(port))
        time.sleep(0.05)
    for each in sockets:
        each.close()
    return delays


def _time_list(port: int) -> float:
    start = time.monotonic()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/api/results", headers={"Accept-Encoding": "gzip"})
    response = client.getresponse()
    response.read()
    client.close()
    assert response.status == 200, response.status
    return time.monotonic() - start


if __name__ == "__main__":
    main()
