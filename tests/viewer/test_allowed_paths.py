"""Nothing outside the folder can be read, whatever results.json, links or addresses say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from asgi_caller import fetch
from PIL import Image

from sacmil.viewer.allowed_paths import make_folder_resolver, resolve_inside

SECRET = b"the secret of another folder"
NEAR = ("scores/sac_mil/tumour-1.npz", "truth/tumour-1.geojson", "thumbnails/thumbnail-only.png")


@pytest.fixture
def outside(made: Path, tmp_path: Path) -> Path:
    """Files of every kind that must not be shown, beside the folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    (outside / "secret.geojson").write_text(json.dumps({"type": SECRET.decode()}))
    Image.new("RGB", (64, 64), "red").save(outside / "secret.png")
    shutil.copy(made / "slides/tumour-1.tif", outside / "secret.tif")
    shutil.copy(made / "scores/sac_mil/tumour-1.npz", outside / "secret.npz")
    return outside


def change_slide(folder: Path, number: int, **changes: Any) -> None:
    whole = json.loads((folder / "results.json").read_text())
    whole["slides"][number] |= changes
    (folder / "results.json").write_text(json.dumps(whole))


def replace_by_link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def test_links_to_files_elsewhere_are_not_followed(folder, outside, make_app) -> None:
    replace_by_link(folder / "scores/sac_mil/tumour-1.npz", outside / "secret.npz")
    replace_by_link(folder / "truth/tumour-1.geojson", outside / "secret.geojson")
    replace_by_link(folder / "thumbnails/thumbnail-only.png", outside / "secret.png")
    app = make_app(folder)
    slides = fetch(app, "/api/results").json()["slides"]
    assert not slides[0]["truth"]
    assert not slides[0]["predictions"][0]["has_scores"]
    assert not slides[4]["thumbnail"]
    for target in ("0/scores/0", "0/truth", "4/thumbnail"):
        reply = fetch(app, f"/api/slides/{target}")
        assert reply.status == 404
        assert set(reply.json()) == {"error"}


def test_links_to_folders_elsewhere_are_not_followed(folder, outside, make_app) -> None:
    shutil.rmtree(folder / "truth")
    (outside / "secret.geojson").rename(outside / "tumour-1.geojson")
    (folder / "truth").symlink_to(outside)
    assert fetch(make_app(folder), "/api/slides/0/truth").status == 404


def test_a_link_put_there_later_is_not_followed_either(folder, outside, make_app) -> None:
    app = make_app(folder)
    assert fetch(app, "/api/slides/0/truth").status == 200
    replace_by_link(folder / "truth/tumour-1.geojson", outside / "secret.geojson")
    assert fetch(app, "/api/slides/0/truth").status == 404


def test_a_folder_whose_name_begins_alike_is_outside(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert resolve_inside(folder / "a.npz", [folder]) is not None
    for path in ("results-of-others/a.npz", "results.json", "results"):
        assert resolve_inside(tmp_path / path, [folder]) is None


def test_links_within_the_folder_are_followed(folder, make_app) -> None:
    (folder / "truth/tumour-1.geojson").rename(folder / "real.geojson")
    (folder / "truth/tumour-1.geojson").symlink_to("../real.geojson")
    assert fetch(make_app(folder), "/api/slides/0/truth").status == 200


def test_the_folder_itself_may_be_a_link(folder, tmp_path, make_app) -> None:
    (tmp_path / "link").symlink_to(folder)
    app = make_app(tmp_path / "link")
    assert fetch(app, "/api/slides/0/truth").status == 200
    assert fetch(app, "/api/slides/0").json()["zoomable"]


@pytest.mark.parametrize("linked", [False, True])
def test_a_slide_elsewhere_needs_its_folder_named(folder, outside, make_app, linked) -> None:
    slide = outside / "secret.tif"
    if linked:
        replace_by_link(folder / "slides/tumour-1.tif", slide)
    else:
        change_slide(folder, 0, slide=str(slide))
    app = make_app(folder)
    document = fetch(app, "/api/slides/0").json()
    assert not document["zoomable"]
    assert f"with the slide folder {outside}" in document["reason"]
    assert fetch(app, "/api/slides/0/tiles/8/0_0.jpg").status == 422
    named = make_app(folder, outside)
    assert fetch(named, "/api/slides/0").json()["zoomable"]
    assert fetch(named, "/api/slides/0/tiles/8/0_0.jpg").status == 200


def test_the_reason_does_not_reveal_whether_a_file_exists(folder, make_app) -> None:
    reasons = []
    for name in ("/etc/passwd", "/etc/no such file"):
        change_slide(folder, 0, slide=name)
        reasons.append(fetch(make_app(folder), "/api/slides/0").json()["reason"])
    assert reasons[0] == reasons[1]


def test_a_slide_is_found_by_its_name_in_a_folder_that_was_named(folder, outside, make_app) -> None:
    (outside / "deep").mkdir()
    (outside / "secret.tif").rename(outside / "deep" / "bag-only.tif")
    app = make_app(folder, outside)
    assert fetch(app, "/api/slides/3").json()["zoomable"]
    assert fetch(app, "/api/slides/3/tiles/8/0_0.jpg").status == 200


def test_links_out_of_a_folder_that_was_named_are_not_followed(
    folder, outside, tmp_path, make_app
) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named/bag-only.tif").symlink_to(outside / "secret.tif")
    document = fetch(make_app(folder, tmp_path / "named"), "/api/slides/3").json()
    assert not document["zoomable"]
    assert f"with the slide folder {outside}" in document["reason"]


def test_a_slide_that_names_further_files_needs_its_folder_named(folder, make_app) -> None:
    listing = "[Virtual Microscope Specimen]\nImageFile=../../outside/secret.jpg\n"
    (folder / "slides/tumour-1.tif").write_text(listing)
    document = fetch(make_app(folder), "/api/slides/0").json()
    assert not document["zoomable"]
    assert f"with the slide folder {folder / 'slides'}" in document["reason"]


@pytest.fixture
def mirax(folder: Path) -> Path:
    """A MIRAX slide in the results: it begins as a picture and names its other files."""
    slide = folder / "slides/tumour-1.mrxs"
    Image.new("RGB", (64, 64)).save(slide, "JPEG")
    slide.with_suffix("").mkdir()
    (slide.with_suffix("") / "Slidedat.ini").write_text(
        "[DATAFILE]\nFILE_COUNT=1\nFILE_0=../../../outside/secret.dat\n"
    )
    change_slide(folder, 0, slide="slides/tumour-1.mrxs")
    return slide


def test_a_slide_that_begins_as_a_picture_opens_no_further_files(folder, mirax, make_app) -> None:
    app = make_app(folder)
    found = fetch(app, "/api/slides/0").json()
    assert not found["zoomable"]
    assert "several files" in found["reason"]
    assert f"with the slide folder {mirax.parent}" in found["reason"]
    assert fetch(app, "/api/slides/0/tiles/0/0_0.jpg").status == 422


def test_further_files_of_a_slide_are_opened_in_a_folder_that_was_named(
    folder, mirax, make_app
) -> None:
    found = fetch(make_app(folder, mirax.parent), "/api/slides/0").json()
    assert "several files" not in found["reason"]  # only that this one is not whole


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_opened(folder, make_app, kind: str) -> None:
    make = {
        "fifo": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
    }[kind]
    for path in (folder / name for name in (*NEAR, "slides/tumour-1.tif")):
        path.unlink()
        make(path)
    app = make_app(folder)
    for target in ("0/scores/0", "0/truth", "4/thumbnail"):
        assert fetch(app, f"/api/slides/{target}").status == 404
    assert not fetch(app, "/api/slides/0").json()["zoomable"]


def test_links_in_a_circle_are_no_file(folder, make_app) -> None:
    replace_by_link(folder / "truth/tumour-1.geojson", folder / "truth/other.geojson")
    (folder / "truth/other.geojson").symlink_to(folder / "truth/tumour-1.geojson")
    replace_by_link(folder / "slides/tumour-1.tif", folder / "slides/tumour-1.tif")
    app = make_app(folder)
    assert fetch(app, "/api/slides/0/truth").status == 404
    assert not fetch(app, "/api/slides/0").json()["zoomable"]


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "/", "a\0b", "\ud800", "x" * 5000, "a/" * 3000, "~", "file:///etc/passwd"],
)
def test_an_odd_path_of_a_slide_is_reported_and_not_opened(folder, make_app, path: str) -> None:
    change_slide(folder, 0, slide=path)
    app = make_app(folder)
    assert not fetch(app, "/api/slides/0").json()["zoomable"]
    assert fetch(app, "/api/slides/0/tiles/0/0_0.jpg").status == 422
    assert not fetch(app, "/api/results").json()["slides"][0]["zoomable"]


@pytest.mark.parametrize(
    "path",
    [
        "file",
        "link",
        "missing",
        "loop",
        "out/secret.txt",
        "out/../file",
        "deep/..",
        "",
        ".",
        "a\\b",
    ],
)
def test_following_each_folder_once_leads_where_following_each_file_does(
    tmp_path, outside, path: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "out").symlink_to(outside)
    resolve, full = make_folder_resolver(), os.path.join(tmp_path, path)  # noqa: PTH118 - keeps dots
    assert [resolve(full), resolve(full)] == [os.path.realpath(full)] * 2


def test_the_list_follows_each_folder_once_and_opens_no_slide(
    folder, make_app, monkeypatch
) -> None:
    followed: list[str] = []
    follow = os.path.realpath
    app = make_app(folder)
    monkeypatch.setattr(os.path, "realpath", lambda path: followed.append(path) or follow(path))
    monkeypatch.setattr(Path, "open", None)
    assert len(fetch(app, "/api/results").json()["slides"]) == 7
    assert len(followed) == len(set(followed)) < 7


CLIMBS = [
    "/../outside/secret.txt",
    "/%2e%2e/outside/secret.txt",
    "/%2E%2E%2Foutside%2Fsecret.txt",
    "/%252e%252e/outside/secret.txt",
    "/..%5coutside%5csecret.txt",
    "/..\\outside\\secret.txt",
    "/assets/../../outside/secret.txt",
    "/assets/%2e%2e/%2e%2e/outside/secret.txt",
    "//outside/secret.txt",
    "/%00/outside/secret.txt",
    "/..%00/outside/secret.txt",
    "/\xc0\xae\xc0\xae/outside/secret.txt",
    "/%c0%ae%c0%ae/outside/secret.txt",
    "/\u2025/outside/secret.txt".encode().decode("latin-1"),
    "/api/slides/0/truth/../../../../../outside/secret.txt",
    "/api/slides/..%2f..%2foutside%2fsecret.txt/thumbnail",
    "/api/slides/0/tiles/8/..%2f..%2foutside%2fsecret.txt",
    "http://127.0.0.1:8765/../outside/secret.txt",
    "*",
    "",
]


@pytest.mark.parametrize("target", CLIMBS)
def test_no_address_leads_out_of_the_folder(folder, outside, make_app, target: str) -> None:
    static = folder.parent / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("page")
    app = make_app(folder, static=static)
    for full in (target, target.replace("outside/secret.txt", f"{outside}/secret.txt")):
        reply = fetch(app, full)
        assert reply.status == 404
        assert SECRET not in reply.body
