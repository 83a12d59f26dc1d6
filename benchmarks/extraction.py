"""Slides to bags: tiles per second against what reading and encoding cost by themselves.

A slide of tissue-like texture is made, and in the same run measured: core-seconds to encode a
tile, core-seconds to read one, tiles per second of the whole pipeline, and tiles per second of a
plain loop such as the field's tools use (a DataLoader over openslide feeding the torch network).

Run: python -m benchmarks.extraction --side 20480 --encoder lite0
     python -m benchmarks.extraction --side 12288 --slides 8 --encoder resnet50 --device cuda:0
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tifffile

from sacmil.encoders import Encoder, load_encoder
from sacmil.extraction import ExtractionResources, ExtractionRow, ExtractionSettings, extract_slides
from sacmil.extraction.prepare_slide import prepare_slide, read_batch
from sacmil.extraction.slide_request import SlideRequest, make_encoder_info
from sacmil.slides.tiling import TileSpec


def main(arguments: list[str] | None = None) -> None:
    """Print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=20480, help="of the slide, in pixels")
    parser.add_argument("--tile", type=int, default=256, help="side of the tiles, in pixels")
    parser.add_argument("--slides", type=int, default=1, help="copies of it to extract")
    parser.add_argument("--encoder", default="lite0")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--plain-tiles", type=int, default=512, help="of the plain loop; 0: none")
    options = parser.parse_args(arguments)
    encoder = load_encoder(
        options.encoder, device=options.device, random_weights=options.random_weights
    )
    resources = ExtractionResources(
        workers=options.workers, threads=options.threads, batch_size=options.batch_size
    ).resolve(options.device)
    settings = ExtractionSettings(tiles=TileSpec(mpp=0.5, patch_size=options.tile))
    with tempfile.TemporaryDirectory() as folder:
        slides = make_slides(Path(folder), options.side, options.slides, options.tile)
        print(
            f"{options.slides} x {options.side:,} pixels square, "
            f"{slides[0].stat().st_size / 2**20:.0f} MiB; {encoder.card.name} on {encoder.device} "
            f"({encoder.engine}, {encoder.precision}); {resources}"
        )
        encoding = measure_encoder(encoder, resources)
        if encoder.device != "cpu":
            parts_on_gpu(encoder, resources, encoding, options.tile)
        reading = measure_reading(slides[0], encoder, resources.batch_size, settings)
        lay_tiles(slides, Path(folder) / "out", settings)
        rate = pipeline_rate(slides, Path(folder) / "out", encoder, resources, settings)
        report(encoder, encoding, reading, rate)
        if options.plain_tiles:
            plain_loop(slides[0], options, rate)


def make_slides(folder: Path, side: int, copies: int, tile: int) -> list[Path]:
    """Pyramids of JPEG tiles: a texture, shifted from tile to tile."""
    random = np.random.default_rng(0)
    coarse = random.random((64, 64)).repeat(32, 0).repeat(32, 1)
    grain = random.random((683, 683)).repeat(3, 0).repeat(3, 1)[:2048, :2048]
    stain = 0.6 * coarse + 0.4 * grain
    pink, purple = np.array([232, 160, 200]), np.array([110, 60, 140])
    texture = (pink + (purple - pink) * stain[..., None]).astype(np.uint8)
    first = folder / "slide-0.tif"
    options = {
        "tile": (tile, tile),
        "photometric": "rgb",
        "compression": "jpeg",
        "compressionargs": {"level": 80},
        "resolution": (20000, 20000),
        "resolutionunit": "CENTIMETER",
        "metadata": None,
    }
    with tifffile.TiffWriter(first, bigtiff=True) as file:
        for level, factor in enumerate((1, 4, 16)):
            shape = (side // factor, side // factor, 3)
            tiles = _tiles(texture, shape[0], tile)
            file.write(tiles, shape=shape, dtype="uint8", subfiletype=int(level > 0), **options)
    copied = [folder / f"slide-{number}.tif" for number in range(copies)]
    for path in copied[1:]:
        shutil.copyfile(first, path)
    return copied


def _tiles(texture: np.ndarray, side: int, tile: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(1)
    count = -(-side // tile)
    for _ in range(count * count):
        x, y = random.integers(0, len(texture) - tile, 2)
        yield np.ascontiguousarray(texture[y : y + tile, x : x + tile])


def measure_encoder(encoder: Encoder, resources: ExtractionResources) -> float:
    """Seconds of a core (of the GPU) that encoding a tile takes, on tiles in memory.

    On a CPU with all threads at it, as cores share their memory.
    """
    side, batch, threads = encoder.card.input_px, resources.batch_size, resources.threads
    tiles = np.random.default_rng(0).integers(0, 255, (batch, side, side, 3), dtype=np.uint8)
    if encoder.device == "cpu":
        with encoder.concurrent_mode(), ThreadPoolExecutor(threads) as pool:
            each = [tiles] * 2 * threads
            list(pool.map(encoder.encode, each))
            return _split_of_time(lambda: list(pool.map(encoder.encode, each)), batch * len(each))
    return on_tensors(encoder, side, batch)


def _split_of_time(call: Callable[[], object], tiles: int, at_least: float = 10.0) -> float:
    """Seconds of a core per tile; how the kernel shares in them is printed."""
    before, calls = resource.getrusage(resource.RUSAGE_SELF), 0
    start = time.process_time()
    while time.process_time() - start < at_least:
        call()
        calls += 1
    after = resource.getrusage(resource.RUSAGE_SELF)
    count = calls * tiles
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    faults = (after.ru_minflt - before.ru_minflt) / count
    print(
        f"encode {1e3 * user / count:.1f} ms a tile in user mode, {1e3 * system / count:.1f} ms in "
        f"the kernel ({system / (user + system):.0%}), {faults:,.0f} page faults"
    )
    return (user + system) / count


def on_tensors(encoder: Encoder, side: int, batch: int) -> float:
    """Seconds a tile that is on the GPU already: copies are not counted, resizing is if needed."""
    import torch

    tiles = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, device=encoder.device)

    def encode() -> None:
        with torch.inference_mode():
            for _ in range(10):
                encoder._features(tiles)  # type: ignore[attr-defined]
        torch.cuda.synchronize()

    return _seconds(encode, time.perf_counter, at_least=3.0) / (10 * batch)


def parts_on_gpu(
    encoder: Encoder, resources: ExtractionResources, encoding: float, tile: int
) -> None:
    """What is left of the network's rate when tiles are resized too, then copied there as well."""
    batch, threads = resources.batch_size, resources.threads
    tiles = encoder.allocate_buffer(batch * tile * tile * 3).reshape(batch, tile, tile, 3)
    tiles[:] = np.random.default_rng(0).integers(0, 255, tiles.shape, dtype=np.uint8)
    each = [tiles] * 20 * threads
    with encoder.concurrent_mode(), ThreadPoolExecutor(threads) as pool:
        from_memory = _seconds(
            lambda: list(pool.map(encoder.encode, each)), time.perf_counter, at_least=3.0
        )
    seconds = {
        "resized on the GPU": on_tensors(encoder, tile, batch),
        "from memory, by threads": from_memory / (batch * len(each)),
    }
    for name, each_takes in seconds.items():
        share = encoding / each_takes
        print(f"{name}: {1 / each_takes:,.0f} tiles/s = {share:.0%} of the network")


def measure_reading(
    slide: Path, encoder: Encoder, batch: int, settings: ExtractionSettings
) -> float:
    """Seconds of a core that reading a tile takes."""
    request = SlideRequest(
        path=slide, settings=settings, encoder=make_encoder_info(encoder), batch_size=batch
    )
    tiles = prepare_slide(request).tiles
    assert tiles is not None
    starts = iter(range(0, 10**9, batch))

    def read() -> None:
        first = next(starts) % max(1, len(tiles) - batch)
        read_batch(request, tiles.side, tiles.coords[first : first + batch])

    return _seconds(read, time.process_time, at_least=2.0) / batch


def _seconds(call: Callable[[], object], clock: Callable[[], float], at_least: float) -> float:
    """Mean time of a call after the first, over some seconds."""
    call()
    calls, start = 0, clock()
    while clock() - start < at_least:
        call()
        calls += 1
    return (clock() - start) / calls


def lay_tiles(slides: list[Path], out: Path, settings: ExtractionSettings) -> None:
    """Find tissue and tiles first: a slide's share of that depends on how large slides are."""
    start = time.perf_counter()
    extract_slides(slides, out, settings=settings, until="tiles")
    print(f"tissue and tiles: {(time.perf_counter() - start) / len(slides):.2f} s a slide")


class _Stopwatch:
    """Notes when tiles come out of the encoder."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.encoded: list[tuple[float, int]] = []

    def on_tiles(self, encoded: int, found: int) -> None:
        if encoded:
            self.encoded.append((time.perf_counter() - self.start, encoded))

    def on_slide(self, row: ExtractionRow, left: int) -> None:
        assert row.status == "done", row.reason

    def rate(self) -> float:
        """Tiles per second after the first tenth, when processes have started."""
        times, counts = np.array(self.encoded).T
        first = len(times) // 10
        return float(counts[first + 1 :].sum() / (times[-1] - times[first]))


def pipeline_rate(
    slides: list[Path],
    out: Path,
    encoder: Encoder,
    resources: ExtractionResources,
    settings: ExtractionSettings,
) -> float:
    """Tiles per second once everything runs; the whole run, start and end included, is printed."""
    watch = _Stopwatch()
    options = {"settings": settings, "resources": resources, "progress": watch}
    extract_slides(slides, out, encoders=[encoder], **options)
    seconds, tiles = time.perf_counter() - watch.start, sum(n for _, n in watch.encoded)
    print(f"{tiles:,} tiles in {seconds:.1f} s, {tiles / seconds:,.1f} tiles/s from start to end")
    return watch.rate()


def report(encoder: Encoder, encoding: float, reading: float, rate: float) -> None:
    """How far from what the parts would allow."""
    cores = len(os.sched_getaffinity(0))
    share = "of one core" if encoder.device == "cpu" else f"= {1 / encoding:,.0f} tiles/s by itself"
    print(f"encode {1e3 * encoding:8.3f} ms a tile {share}")
    print(f"read   {1e3 * reading:8.3f} ms a tile of one core, {cores} cores")
    if encoder.device == "cpu":
        ideal = cores / (encoding + reading)
        print(f"whole  {rate:8,.1f} tiles/s = {rate / ideal:.0%} of {cores} / (encode + read)")
    else:
        print(f"whole  {rate:8,.1f} tiles/s = {rate * encoding:.0%} of the encoder")


def plain_loop(slide: Path, options: argparse.Namespace, rate: float) -> None:
    """A DataLoader over openslide and the network in torch, as the field's tools do it."""
    try:
        import openslide  # noqa: F401
        import torch
    except ImportError as error:
        print(f"plain  not measured here: {error}")
        return
    encoder = load_encoder(
        options.encoder,
        device=options.device,
        engine="torch",
        random_weights=options.random_weights,
    )
    count = options.plain_tiles
    loader = torch.utils.data.DataLoader(
        _Plain(slide, options.tile, encoder.card.input_px, count),
        batch_size=32,
        num_workers=len(os.sched_getaffinity(0)),
    )
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    start = time.perf_counter()
    for tiles in loader:
        encoder.encode(tiles.numpy())
    plain = count / (time.perf_counter() - start)
    print(f"plain  {plain:8,.1f} tiles/s over {count} tiles; ours is {rate / plain:.2f} x as fast")


class _Plain:
    """Tiles of a slide, one by one, as a map-style dataset."""

    def __init__(self, slide: Path, tile: int, side: int, count: int) -> None:
        self._path, self._tile, self._side, self._count = slide, tile, side, count
        self._slide = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> np.ndarray:
        import openslide

        if self._slide is None:
            self._slide = openslide.OpenSlide(self._path)
        across = self._slide.dimensions[0] // self._tile
        corner = (index % across * self._tile, index // across * self._tile)
        tile = self._slide.read_region(corner, 0, (self._tile, self._tile)).convert("RGB")
        return np.array(tile.resize((self._side, self._side)))


if __name__ == "__main__":
    main()
