"""Features of the real sets, in files small enough to travel: made once, on a CPU, resumable.

Two encoders come from one pass of EfficientNet-Lite0 (ImageNet weights, tiles resized to 224):
``lite0``, the mean of its last map (1280), and ``lite0_mid``, mean and spread of the 112 channels
in the middle of the network, which see texture rather than objects (224). Both are projected by
PCA, to 256 and 128. The projection of a set, its mean and scale too, is fitted on sixteen pictures
of each of the *other two* sets: no picture has any part in how its own set is projected. ``rgb`` is
the mean colour of each tile, for the baseline. Features are known by what they were made from, not
by their bits: another processor rounds otherwise, and they are the same features.

Run: python -m benchmarks.accuracy.features --data DIR --out FOLDER
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import relu6
from tqdm import tqdm

from benchmarks.accuracy._pictures import SETS, Picture
from sacmil.atomic import atomic_write
from sacmil.cohorts.splits import shuffle_by_hash
from sacmil.encoders import Encoder
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._efficientnet_lite import EfficientNetLite0
from sacmil.encoders.imagenet import ENCODERS as IMAGENET

Floats = npt.NDArray[np.float32]
Part = dict[str, npt.NDArray[Any]]
"""A picture encoded: features as they come, coords, truth, rgb, label."""

LAST, MIDDLE = 1280, 224
MIDDLE_BLOCK = 10
"""After which the middle is looked at: the last at a sixteenth of the side, 112 channels."""
ENCODERS = {"lite0": slice(0, LAST), "lite0_mid": slice(LAST, LAST + MIDDLE)}
"""Where each stands in the raw features."""
WIDTHS = {"lite0": 256, "lite0_mid": 128}
AT_ONCE = 32
FITTED_ON = 16
"""Pictures of each of the other sets."""


def main(arguments: list[str] | None = None) -> None:
    """Encode what is missing; what every projection needs comes first, so that sets come early."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="holds colon, breast and idc")
    parser.add_argument("--out", type=Path, required=True, help="folder for idc.h5, breast.h5, …")
    parser.add_argument("--limit", type=int, help="tiles of a picture, to try it out")
    options = parser.parse_args(arguments)
    encoder = load_encoder()
    names = {name: SETS[name].names(options.data) for name in SETS}
    for name in SETS:
        encode_set(name, fitting(names[name]), options, encoder)
    for name in SETS:
        encode_set(name, names[name], options, encoder)
        parts = {other: _read_parts(options.out / "parts" / other) for other in SETS}
        path = options.out / f"{name}.h5"
        write(path, name, parts, encoder.hash)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def fitting(names: Iterable[str]) -> list[str]:
    """The pictures of a set that projections of other sets are fitted on."""
    return shuffle_by_hash(names, "fitting")[:FITTED_ON]


class TwoDepths(EfficientNetLite0):
    """Lite0 that tells its last map and its middle one."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images to (B, 1280 + 2 × 112)."""
        x = relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks[: MIDDLE_BLOCK + 1]:
            x = block(x)
        middle = x.flatten(2)
        mean = middle.mean(2)
        spread = (middle - mean[:, :, None]).square().mean(2).sqrt()
        for block in self._blocks[MIDDLE_BLOCK + 1 :]:
            x = block(x)
        last = relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))
        return torch.cat([last, mean, spread], dim=1)


def load_encoder() -> Encoder:
    """Lite0 at two depths, with the weights of the registered encoder."""
    lite0 = IMAGENET[0]
    card = replace(lite0.card, name="lite0_two_depths", width=LAST + MIDDLE)
    return replace(lite0, card=card, build=TwoDepths).load(EncoderRequest())


def encode_set(
    name: str, pictures: Iterable[str], options: argparse.Namespace, encoder: Encoder
) -> None:
    """Each picture as a file of its own; those that are there are left alone."""
    for picture in tqdm(pictures, desc=name, unit="picture", mininterval=10):
        file = options.out / "parts" / name / f"{picture}.npz"
        if not file.exists():
            part = encoded(SETS[name].picture(options.data, picture), encoder, options.limit)
            with atomic_write(file) as partial, partial.open("wb") as stream:
                np.savez(stream, **part)  # type: ignore[arg-type]


def encoded(picture: Picture, encoder: Encoder, limit: int | None = None) -> Part:
    """Features of all tiles, or of the first few."""
    tiles = picture.tiles[:limit]
    features = [
        encoder.encode(_resized(tiles[begin : begin + AT_ONCE], encoder.card.input_px))
        for begin in range(0, len(tiles), AT_ONCE)
    ]
    return {
        "raw": np.concatenate(features).astype(np.float16),
        "coords": picture.coords[:limit],
        "truth": picture.truth[:limit],
        "rgb": tiles.mean((1, 2)).astype(np.float16),
        "label": np.array(picture.label),
    }


def write(path: Path, name: str, sets: Mapping[str, Mapping[str, Part]], weights: str) -> None:
    """A set as an HDF5 file: bags one after the other, ``starts`` says where each begins."""
    parts = sets[name]
    others = [sets[other][one] for other in sets if other != name for one in fitting(sets[other])]
    origin = _origin([*parts.values(), *others], weights)
    # the partial file is locked already
    with atomic_write(path) as partial, h5py.File(partial, "w", locking=False) as file:
        file.attrs["encoder"] = f"EfficientNet-Lite0, ImageNet, weights {weights}"
        file.attrs["patch_px"] = SETS[name].side
        file["starts"] = np.cumsum([0, *(len(part["raw"]) for part in parts.values())])
        file["names"] = np.array(list(parts), dtype="S")
        file["labels"] = np.array([int(part["label"]) for part in parts.values()])
        for key in ("coords", "truth", "rgb"):
            file[key] = np.concatenate([part[key] for part in parts.values()])
        for encoder in ENCODERS:
            _write_features(file, encoder, parts, others)
            made = f"{origin} {encoder} {WIDTHS[encoder]}".encode()
            file[encoder].attrs["hash"] = hashlib.sha256(made).hexdigest()[:16]


def _write_features(
    file: h5py.File, encoder: str, parts: Mapping[str, Part], others: Sequence[Part]
) -> None:
    columns = ENCODERS[encoder]
    fitted = np.concatenate([part["raw"][:, columns] for part in others]).astype(np.float32)
    project = Projection(fitted, WIDTHS[encoder])
    raw = np.concatenate([part["raw"][:, columns] for part in parts.values()]).astype(np.float32)
    file[encoder] = project(raw).astype(np.float16)
    file[encoder].attrs["kept"] = project.kept(raw)


def _origin(parts: Iterable[Part], weights: str) -> str:
    """Of the weights, and of every tile's place and mean colour."""
    found = hashlib.sha256(weights.encode())
    for part in parts:
        found.update(part["coords"].tobytes() + part["rgb"].tobytes())
    return found.hexdigest()


class Projection:
    """PCA fitted on some features, scaled by one number so that its outputs vary by one on average.

    Args:
        features: (n, D), to fit it on.
        width: outputs, at most.
    """

    def __init__(self, features: Floats, width: int) -> None:
        sample = features.astype(np.float64)
        self.mean = sample.mean(0)
        values, vectors = np.linalg.eigh(np.cov(sample - self.mean, rowvar=False))
        best = np.argsort(values)[::-1][:width]
        self.axes = vectors[:, best] * _signs(vectors[:, best])
        self.scale = 1 / np.sqrt(max(values[best].mean(), 1e-12))

    def __call__(self, features: Floats) -> Floats:
        """(N, D) to (N, width)."""
        return np.asarray((features - self.mean) @ self.axes * self.scale, np.float32)

    def kept(self, features: Floats) -> float:
        """Share of the variance of some features that passes."""
        centred = features - features.mean(0)
        return float(np.square(centred @ self.axes).sum() / max(np.square(centred).sum(), 1e-12))


def _signs(axes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """That make the largest number of every axis positive: else they are the library's whim."""
    return np.sign(np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0))


def _read_parts(folder: Path) -> dict[str, Part]:
    found = {}
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as arrays:
            found[file.stem] = dict(arrays)
    return found


def _resized(tiles: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    from PIL import Image

    images = [
        Image.fromarray(tile).resize((side, side), Image.Resampling.BICUBIC) for tile in tiles
    ]
    return np.stack([np.asarray(image) for image in images])


if __name__ == "__main__":
    main()
