"""Whatever a path leads to, read_bag gives a bag or one sentence that begins with the path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from sacmil.errors import FormatError
from sacmil.formats import _registry, find_bags, list_formats, read_bag

COORDS = np.array([[0, 0], [256, 0]])


def write_h5(**datasets: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name, values in datasets.items():
                file[name] = values

    return write


def group_called_features(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("features")["level"] = np.ones((2, 3))


def cut_h5(path: Path) -> None:
    write_h5(features=np.ones((2, 3)), coords=COORDS)(path)
    path.write_bytes(path.read_bytes()[:600])


def write_nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (write_h5(features=np.ones((2, 3), "f4"), coords=COORDS), "holding coords, features"),
        (write_h5(feats=np.ones((2, 3), "f2"), coords=COORDS), "holding coords, feats"),
        (write_h5(imgs=np.zeros((2, 8, 8, 3), "u1"), coords=COORDS), "holding coords, imgs"),
        (write_h5(), "holding nothing"),
        (group_called_features, "holding features"),
        (cut_h5, "truncated or damaged"),
        (lambda path: path.write_bytes(b""), "an empty file"),
        (lambda path: path.write_text("slide_id,label\n"), "not HDF5"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)), "not HDF5"),
        (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "truncated or damaged"),
        (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5000)), "damaged"),
        (Path.mkdir, "this is a folder"),
        (write_nothing, "there is no such file"),
    ],
    ids=[
        *("clam", "stamp", "patches", "empty-h5", "group", "cut"),
        *("zero-length", "text", "zip", "signature", "zeros", "folder", "missing"),
    ],
)
def test_what_is_no_bag_is_reported_in_one_sentence(
    tmp_path: Path, write: Callable[[Path], Any], expected: str
) -> None:
    path = tmp_path / "slide.h5"
    write(path)
    with pytest.raises(FormatError) as raised:
        read_bag(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "\n" not in message


def test_a_file_of_no_known_layout_names_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(FormatError, match=", ".join(list_formats())):
        read_bag(tmp_path / "a")


def test_a_path_may_be_text(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        read_bag(str(tmp_path / "missing.h5"))


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "slide.h5/below", os.devnull])
def test_a_path_no_file_can_have_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "slide.h5").write_text("x")
    with pytest.raises(FormatError, match=r"no such file|cannot be read|not a regular file"):
        read_bag(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_nobody_writes_to_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a regular file"):
        read_bag(tmp_path / "pipe")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("locked", ["file", "folder"])
def test_no_permission_is_reported(tmp_path: Path, locked: str) -> None:
    path = tmp_path / "folder" / "slide.h5"
    path.parent.mkdir()
    path.write_text("x")
    (path if locked == "file" else path.parent).chmod(0)
    try:
        with pytest.raises(FormatError, match="Permission denied"):
            read_bag(path)
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize("rejects", ["stat", "open"])
def test_a_system_that_rejects_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rejects: str
) -> None:
    path = tmp_path / "slide.h5"
    path.write_text("x")

    def reject(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, rejects, reject)
        with pytest.raises(FormatError, match=r"slide\.h5: .*Permission denied"):
            read_bag(path)


def test_every_layout_offers_the_two_functions() -> None:
    from sacmil.formats._registry import _load_formats

    assert "native" in list_formats()
    assert all(
        callable(layout.matches) and callable(layout.read) for layout in _load_formats().values()
    )


def test_a_layout_says_how_its_files_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.npz").touch()
    with pytest.raises(FormatError, match="holds no bags"):
        find_bags([tmp_path])
    known = {**_registry._load_formats(), "zipped": SimpleNamespace(SUFFIXES=(".npz",))}
    monkeypatch.setattr(_registry, "_load_formats", lambda: known)
    assert find_bags([tmp_path]) == [tmp_path / "a.npz"]
