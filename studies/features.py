"""Make COLON, BREAST and IDC datasets in sacmil's own form, on a CPU; resumable.

The input has ``colon/images`` with ``nuclei.csv`` (image, x, y, type), ``breast/images`` with
``labels.csv`` (image, label) and ``idc/slides`` with ``patches.csv`` (slide, x, y, idc). The output
has, for each SET, the cohort ``SET/labels.csv`` and the bags ``SET/FEATURES/SLIDE.h5``, with labels
of instances except for BREAST. ``SET/features.json`` has a hash of the origin of all FEATURES:

- ``lite0``: the mean of the last map of EfficientNet-Lite0 (ImageNet), projected from 1280 to 256;
- ``lite0_mid``: mean and deviation of a middle map, for texture, projected from 2 × 112 to 128;
- ``rgb``: the mean color of each tile, a baseline;
- ``raw``: ``lite0`` and ``lite0_mid`` before the projection.

A projection is a PCA. That of a set is fitted on sixteen pictures of each of the *other two* sets:
no picture influences the projection of its own set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from PIL import Image
from torch.nn.functional import relu6
from tqdm import tqdm

from sacmil.atomic import atomic_write
from sacmil.bag import Bag, EncoderId
from sacmil.cohorts.cohort import Cohort, LabeledSlide, write_cohort
from sacmil.cohorts.splits import shuffle_by_hash
from sacmil.encoders import Encoder
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._efficientnet_lite import EfficientNetLite0, pad_far_side
from sacmil.encoders.imagenet import ENCODERS
from sacmil.formats import read_bag, write_bag
from sacmil.units import Level0Px

Floats = npt.NDArray[np.floating]
Pixels = npt.NDArray[np.uint8]
Corners = npt.NDArray[np.int32]

PROJECTIONS = {"lite0": (slice(0, 1280), 256), "lite0_mid": (slice(1280, 1504), 128)}
"""Columns of the raw features, and the width after the projection."""
FITTING_PICTURES, BATCH_SIZE = 16, 16
WHITE, WHITE_SHARE = 200, 0.75
"""Ilse et al. leave out a tile of BREAST if this share of its pixels is lighter than this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--data", type=Path, required=True, help="has colon, breast and idc")
    parser.add_argument("--out", type=Path, required=True, help="folder for the datasets")
    parser.add_argument("--limit", type=int, help="tiles per picture, to try it out")


def run(options: argparse.Namespace) -> None:
    """Encode the pictures that have no features yet, then project all."""
    encoder = load_encoder()
    for name in SETS:
        encode_set(name, options.data, options.out, encoder, options.limit)
    for name in SETS:
        project_set(name, options.out)


class PictureSet(NamedTuple):
    """Files of a set, columns of its table (of pictures and of labels), and how to cut tiles."""

    table: str
    picture: str
    label: str
    positive: str
    tile_px: int
    find_tiles: Callable[[Pixels, pd.DataFrame, int], tuple[Pixels, Corners]]
    """From a picture, its rows and the side of tiles to a picture and the tiles' corners in it."""
    image: str = "images/{}.jpg"

    def cut_tiles(self, folder: Path, name: str, rows: pd.DataFrame) -> tuple[Pixels, Corners]:
        """Return tiles (N, P, P, 3) and their upper left corners."""
        side = self.tile_px
        with Image.open(folder / self.image.format(name)) as opened:
            image, corners = self.find_tiles(np.asarray(opened.convert("RGB")), rows, side)
        return np.stack([image[y : y + side, x : x + side] for x, y in corners]), corners


def find_nuclei(image: Pixels, rows: pd.DataFrame, side: int) -> tuple[Pixels, Corners]:
    """Mirror the picture at its border, by the side of a tile, for the nuclei there."""
    image = np.pad(image, ((side, side), (side, side), (0, 0)), "symmetric")
    corners = np.rint(rows[["x", "y"]].to_numpy(np.float64) - side / 2) + side
    return image, corners.clip(0, np.array(image.shape[1::-1]) - side).astype(np.int32)


def find_tissue(image: Pixels, rows: pd.DataFrame, side: int) -> tuple[Pixels, Corners]:
    """Place tiles on a grid, except where it is white."""
    down, across = image.shape[0] // side, image.shape[1] // side
    is_white = (image.min(-1) > WHITE)[: down * side, : across * side]
    is_tissue = is_white.reshape(down, side, across, side).mean((1, 3)) < WHITE_SHARE
    return image, (np.argwhere(is_tissue)[:, ::-1] * side).astype(np.int32)


def find_patches(image: Pixels, rows: pd.DataFrame, side: int) -> tuple[Pixels, Corners]:
    """Take the corners in the table."""
    return image, rows[["x", "y"]].to_numpy(np.int32)


SETS = {
    "idc": PictureSet("patches.csv", "slide", "idc", "1", 50, find_patches, "slides/{}.tif"),
    "breast": PictureSet("labels.csv", "image", "label", "malignant", 64, find_tissue),
    "colon": PictureSet("nuclei.csv", "image", "type", "epithelial", 27, find_nuclei),
}


class TwoDepths(EfficientNetLite0):
    """Lite0 that returns its last map and a middle one, pooled."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Encode images as (B, 1280 + 2 × 112)."""
        x = relu6(self._bn0(self._conv_stem(pad_far_side(images, 2))))
        for block in self._blocks[:11]:  # to a sixteenth of the image's side
            x = block(x)
        middle = x.flatten(2)
        mean = middle.mean(2)
        deviation = (middle - mean[:, :, None]).square().mean(2).sqrt()
        for block in self._blocks[11:]:
            x = block(x)
        last = relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))
        return torch.cat([last, mean, deviation], dim=1)


def load_encoder() -> Encoder:
    """Load Lite0 at two depths, with the weights of sacmil's lite0."""
    lite0 = ENCODERS[0]
    card = replace(lite0.card, name="lite0_two_depths", width=1280 + 2 * 112)
    # The other engine would run a network that it exported earlier under the same name.
    return replace(lite0, card=card, build=TwoDepths).load(EncoderRequest(engine="torch"))


def encode_set(name: str, data: Path, out: Path, encoder: Encoder, limit: int | None) -> None:
    """Write the cohort of a set, and raw and rgb bags of the pictures that have none."""
    pictures, slides = SETS[name], []
    table = pd.read_csv(data / name / pictures.table, dtype=str)
    groups = {str(slide): rows for slide, rows in table.groupby(pictures.picture)}
    for slide, rows in tqdm(groups.items(), desc=name, mininterval=10):
        labels = np.array(rows[pictures.label] == pictures.positive, np.int64)
        slides.append(LabeledSlide(slide, slide, int(labels.any())))
        raw = out / name / "raw" / f"{slide}.h5"
        if raw.exists():
            continue
        tiles, corners = pictures.cut_tiles(data / name, slide, rows)
        colors = (tiles[:limit].mean((1, 2)).astype(np.float16) - 128.0) / 64.0
        known = None if name == "breast" else labels[:limit]
        bag = Bag(slide, colors, corners[:limit], Level0Px(pictures.tile_px), labels=known)
        origin = hashlib.sha256(bag.coords.tobytes() + colors.tobytes()).hexdigest()
        bag = replace(bag, encoder=EncoderId("rgb"), provenance={"tiles": origin})
        write_bag(out / name / "rgb" / raw.name, bag)
        features = encode_tiles(tiles[:limit], encoder).astype(np.float16)
        network = EncoderId(encoder.card.name, encoder.hash)
        write_bag(raw, replace(bag, features=features, encoder=network))
    write_cohort(out / name / "labels.csv", Cohort(tuple(slides), ("negative", "positive")))


def encode_tiles(tiles: Pixels, encoder: Encoder) -> Floats:
    """Resize tiles to the encoder's input and encode them, a batch on each core."""
    size, bicubic = (encoder.card.input_px,) * 2, Image.Resampling.BICUBIC
    images = [np.asarray(Image.fromarray(tile).resize(size, bicubic)) for tile in tiles]
    batches = np.split(np.stack(images), range(BATCH_SIZE, len(images), BATCH_SIZE))
    with encoder.concurrent_mode(), ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(encoder.encode, batches)))


class Projection:
    """PCA fitted on features (n, D), with one scale so that the mean variance of outputs is one."""

    def __init__(self, features: Floats, width: int) -> None:
        sample = features.astype(np.float64)
        self.mean = sample.mean(0)
        values, vectors = np.linalg.eigh(np.cov(sample - self.mean, rowvar=False))
        best = np.argsort(values)[::-1][:width]
        axes = vectors[:, best]
        # The sign of an axis is arbitrary: make its largest number positive.
        self.axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0))
        self.scale = 1 / np.sqrt(max(values[best].mean(), 1e-12))

    def __call__(self, features: Floats) -> Floats:
        """Project (N, D) to (N, width)."""
        return np.asarray((features - self.mean) @ self.axes * self.scale, np.float32)


def project_set(name: str, folder: Path) -> None:
    """Write the projected bags of a set; the projection is fitted on the other sets."""
    bags = [read_bag(file) for file in sorted((folder / name / "raw").glob("*.h5"))]
    others = [read_bag(f) for other in SETS if other != name for f in choose_files(folder / other)]
    origins = {"rgb": hash_origin("rgb", bags)}
    for features, (columns, width) in PROJECTIONS.items():
        project = Projection(np.concatenate([bag.features[:, columns] for bag in others]), width)
        origins[features] = hash_origin(f"{features} {width}", bags + others)
        encoder = EncoderId(features, origins[features])
        for bag in bags:
            values = project(bag.features[:, columns]).astype(np.float16)
            file = folder / name / features / f"{bag.slide_id}.h5"
            write_bag(file, replace(bag, features=values, encoder=encoder))
    with atomic_write(folder / name / "features.json") as partial:
        partial.write_text(json.dumps(origins, indent=2) + "\n", encoding="utf-8")


def choose_files(folder: Path) -> list[Path]:
    """Return the raw bags of a set that the projections of other sets are fitted on."""
    files = {file.stem: file for file in (folder / "raw").glob("*.h5")}
    return [files[name] for name in shuffle_by_hash(files, "fitting")[:FITTING_PICTURES]]


def hash_origin(features: str, bags: Iterable[Bag]) -> str:
    """Hash weights and tiles, not features: those differ between processors."""
    text = " ".join([features, *(f"{bag.encoder} {bag.provenance}" for bag in bags)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(_parser)
    run(_parser.parse_args())
