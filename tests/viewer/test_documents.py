"""Damaged files in the folder are reported with a message; the others are still served."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_caller import fetch

from sacmil.errors import RunError
from sacmil.results import InstanceScores, write_scores
from sacmil.viewer.content import ResultsApi

SCORES, TRUTH = "scores/sac_mil/tumour-1.npz", "truth/tumour-1.geojson"
THUMBNAIL = "thumbnails/thumbnail-only.png"


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def good(**changes: Any) -> dict[str, Any]:
    return {"coords": np.zeros((2, 2)), "patch_size": 1.0, "scores": np.zeros(2)} | changes


def bomb() -> bytes:
    """Kilobytes that unpack to a gigabyte of zeros."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("scores.npy", "w", force_zip64=True) as part,
    ):
        for _ in range(160):
            part.write(bytes(2**20))
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"no zip",
        npz(**good())[:200],
        npz(),
        npz(**good(coords=np.zeros((2, 3)))),
        npz(**good(scores=np.array([np.nan, 1]))),
        npz(**good(scores=np.array([1j, 1]))),
        npz(**good(scores=np.array(["a", "b"]))),
        npz(**good(scores=np.array([{}, {}]))),
        npz(**good(patch_size=-1.0)),
        npz(**good(class_scores=np.zeros((2, 5)))),
        bomb(),
    ],
)
def test_damaged_scores_are_reported(folder, make_app, content: bytes) -> None:
    (folder / SCORES).write_bytes(content)
    app = make_app(folder)
    reply = fetch(app, "/api/slides/0/scores/0")
    assert reply.status == 422
    assert "tumour-1.npz" in reply.json()["error"]
    assert fetch(app, "/api/slides/0/scores/1").status == 200


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int64])
def test_numbers_of_every_kind_arrive(folder, make_app, dtype: type) -> None:
    values = np.array([1, 0.1, 3e-5], dtype)
    content = npz(coords=np.zeros((3, 2), dtype), patch_size=1.0, scores=values)
    (folder / SCORES).write_bytes(content)
    document = fetch(make_app(folder), "/api/slides/0/scores/0").json()
    np.testing.assert_array_equal(np.array(document["scores"], dtype), values.astype(np.float64))
    assert document["class_scores"] is None


def test_no_tiles_at_all_are_an_empty_map(folder, make_app) -> None:
    write_scores(folder / SCORES, InstanceScores(np.zeros((0, 2)), 1.0, np.zeros(0, np.float32)))
    document = fetch(make_app(folder), "/api/slides/0/scores/0").json()
    assert document["scores"] == []
    assert (document["low"], document["high"]) == (None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"3",
        b"{}",
        b"\xff\xfe",
        b'{"type": "Point", "coordinates": [NaN, 1]}',
        b'{"type": "Point", "coordinates": [1e999, 1]}',
        b'{"type": "Point", "coordinates": [Infinity, 1]}',
        b"[" * 100_000,
        b"\x1f\x8b",
        gzip.compress(b'{"type": "a"}', mtime=0)[:-6],
        gzip.compress(bytes(2**26 + 1), mtime=0),
    ],
)
def test_damaged_truth_is_reported(folder, make_app, content: bytes) -> None:
    (folder / TRUTH).write_bytes(content)
    reply = fetch(make_app(folder), "/api/slides/0/truth")
    assert reply.status == 422
    assert "tumour-1.geojson" in reply.json()["error"]


def test_truth_may_be_gzipped(folder, make_app) -> None:
    before = (folder / TRUTH).read_bytes()
    (folder / TRUTH).write_bytes(gzip.compress(before))
    assert fetch(make_app(folder), "/api/slides/0/truth").json() == json.loads(before)


@pytest.mark.parametrize("content", [b"", b"<svg onload='alert(1)'/>", b"<script>", b"GIF89a"])
def test_a_file_that_is_not_a_picture_is_not_sent(folder, make_app, content: bytes) -> None:
    (folder / THUMBNAIL).write_bytes(content)
    reply = fetch(make_app(folder), "/api/slides/4/thumbnail")
    assert reply.status == 422
    assert "neither a JPEG nor a PNG" in reply.json()["error"]


def test_a_picture_of_gigabytes_is_not_read(folder, make_app) -> None:
    with (folder / THUMBNAIL).open("r+b") as file:
        file.truncate(2**40)  # takes no room on disk
    reply = fetch(make_app(folder), "/api/slides/4/thumbnail")
    assert reply.status == 422
    assert "expected at most" in reply.json()["error"]


def test_a_file_that_vanishes_is_absent(folder, make_app) -> None:
    app = make_app(folder)
    assert fetch(app, "/api/results").json()["slides"][0]["truth"]
    (folder / TRUTH).unlink()
    assert fetch(app, "/api/slides/0/truth").status == 404


@pytest.mark.parametrize(
    "change",
    [
        {"slide": 5},
        {"slide": ["a"]},
        {"label": float("nan")},
        {"label": {"a": 1}},
        {"size": [0, 5]},
        {"size": [-3, 5]},
        {"mpp": float("inf")},
        {"truth": "../x"},
    ],
)
def test_invalid_results_are_rejected_before_anything_is_served(
    folder: Path, change: dict[str, Any]
) -> None:
    whole = json.loads((folder / "results.json").read_text())
    whole["slides"][0] |= change
    (folder / "results.json").write_text(json.dumps(whole))
    with pytest.raises(RunError, match=r"results\.json: is not a valid file of sacmil predict"):
        ResultsApi(folder)


@pytest.mark.parametrize("kept", [8, 200, 5_000, 20_000, -9])
def test_a_truncated_slide_is_reported_and_never_shown_as_complete(
    folder, make_app, kept: int
) -> None:
    path = folder / "slides/tumour-1.tif"
    path.write_bytes(path.read_bytes()[:kept])
    app = make_app(folder)
    document = fetch(app, "/api/slides/0").json()
    if document["zoomable"]:
        assert fetch(app, f"/api/slides/0/tiles/{document['levels'] - 1}/0_0.jpg").status in (
            200,
            422,
        )
    else:
        assert document["reason"]
        assert fetch(app, "/api/slides/0/tiles/0/0_0.jpg").status == 422


def test_a_damaged_tile_is_reported_and_its_neighbours_are_shown(folder, make_app) -> None:
    import tifffile

    path = folder / "slides/tumour-1.tif"
    with tifffile.TiffFile(path) as file:
        start, length = (
            file.pages[0].tags[tag].value[-1] for tag in ("TileOffsets", "TileByteCounts")
        )
    raw = bytearray(path.read_bytes())
    raw[start : start + length] = bytes(length)
    path.write_bytes(raw)
    app = make_app(folder)
    top = fetch(app, "/api/slides/0").json()["levels"] - 1
    damaged = fetch(app, f"/api/slides/0/tiles/{top}/5_4.jpg")
    assert damaged.status == 422
    assert "tumour-1.tif" in damaged.json()["error"]
    assert fetch(app, f"/api/slides/0/tiles/{top}/0_0.jpg").status == 200


def test_a_large_picture_without_tiles_is_rejected_before_it_is_read(folder, make_app) -> None:
    from PIL import Image

    Image.new("1", (9000, 8000)).save(folder / "slides/tumour-1.tif", "PNG")
    document = fetch(make_app(folder), "/api/slides/0").json()
    assert not document["zoomable"]
    assert "72,000,000 pixels without tiles" in document["reason"]
    assert "vips tiffsave" in document["reason"]
