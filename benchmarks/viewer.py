"""The viewer's server under 1,000 tile requests at once on one slide.

Run: python -m benchmarks.viewer --side 8192
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.readers import write_pyramid
from sacmil.results import ModelInfo, Results, SlideResult, StoredPrediction, write_results
from sacmil.viewer.allowed_paths import find_allowed_path
from sacmil.viewer.slide_reading import read_tile

SERVER = """
import sys
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.server import bind_server
server = bind_server(ResultsApi(sys.argv[1]), "127.0.0.1", 0)
print(server.url, flush=True)
server.run()
"""


class Tile(NamedTuple):
    """A Deep Zoom tile."""

    level: int
    x: int
    y: int


def main(arguments: list[str] | None = None) -> None:
    """Print failures, times as multiples of a tile made without a server, and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args(arguments)
    print(
        f"viewer, {options.side:,} x {options.side:,} JPEG pyramid, "
        f"{options.requests:,} tile requests at once, none twice"
    )
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder), options.side)
        tiles = _chosen((options.side - 1).bit_length() + 1, options.side, options.requests)
        direct = _direct(Path(folder), tiles)
        print(f"  directly        {1e3 * direct:8.2f} ms a tile, one after the other")
        for words, at_once in (("one by one", 1), ("screenful", 24), ("all at once", len(tiles))):
            _serve(Path(folder), words, tiles, at_once, direct)


def _make(folder: Path, side: int) -> None:
    write_pyramid(folder / "slide.tif", side)
    answers = (StoredPrediction("model", (0.5, 0.5)),)
    slides = (SlideResult("slide", answers, slide="slide.tif"),)
    write_results(folder, Results(("a", "b"), (ModelInfo("model", "00"),), slides))


def _chosen(levels: int, side: int, count: int) -> list[Tile]:
    """Of the finest levels, by lot."""
    every = []
    for level in range(levels - 1, -1, -1):
        across = -(-side // 2 ** (levels - 1 - level) // 256)
        every += [Tile(level, x, y) for y in range(across) for x in range(across)]
    if count > len(every):
        raise SystemExit(
            f"the slide has {len(every)} tiles, expected at least {count}: --side larger"
        )
    return random.Random(0).sample(every, count)


def _direct(folder: Path, tiles: list[Tile]) -> float:
    place = find_allowed_path(folder / "slide.tif", [folder.resolve()])
    assert place is not None
    read_tile(place, None, *tiles[0])
    start = time.perf_counter()
    for tile in tiles[1:]:
        read_tile(place, None, *tile)
    return (time.perf_counter() - start) / (len(tiles) - 1)


def _serve(folder: Path, words: str, tiles: list[Tile], at_once: int, direct: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = urlsplit(server.stdout.readline()).port or 0
        times, failed, whole = asyncio.run(_ask_all(port, tiles, at_once))
        memory = peak_mib(server.pid)
        server.send_signal(signal.SIGINT)
    middle, slow = np.percentile(times, [50, 95])
    print(
        f"  {words:<12} {failed} failed   p50 {1e3 * middle:8.1f} ms ({middle / direct:6.1f} x)"
        f"   p95 {1e3 * slow:8.1f} ms ({slow / direct:6.1f} x)   all {whole:5.2f} s "
        f"({whole / len(tiles) / direct:4.2f} x a tile)   peak {memory:.0f} MiB"
    )


def peak_mib(process: int) -> float:
    """Of memory in use by the server and the processes that read slides, all together.

    What rusage reports of a child may be its parent's.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:  # not on Linux
        return float("nan")
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    readers = [int(number) for task in tasks for number in task.read_text().split()]
    own = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**10
    return own + sum(map(peak_mib, readers))


async def _ask_all(port: int, tiles: list[Tile], at_once: int) -> tuple[list[float], int, float]:
    """Seconds of every request, how many failed, and seconds of all."""
    turn = asyncio.Semaphore(at_once)
    statuses: list[bytes] = []
    times: list[float] = []

    async def one(tile: Tile) -> None:
        async with turn:
            start = time.perf_counter()
            statuses.append(await _ask(port, tile))
            times.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*map(one, tiles))
    whole = time.perf_counter() - start
    return times, sum(status != b"200" for status in statuses), whole


async def _ask(port: int, tile: Tile) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    address = f"/api/slides/0/tiles/{tile.level}/{tile.x}_{tile.y}.jpg"
    request = f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    whole = body.startswith(b"\xff\xd8\xff") and body.endswith(b"\xff\xd9")
    return head.split(b" ")[1] if whole else b"cut"


if __name__ == "__main__":
    main()
