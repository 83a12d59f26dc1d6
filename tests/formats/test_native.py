"""The native layout: what is written is read, TRIDENT finds its names, damage is reported."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from exhaustive import choose_cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacmil import __version__
from sacmil.bag import Bag, EncoderId
from sacmil.errors import FormatError
from sacmil.formats import native, read_bag, write_bag

OPTIONAL = {
    "mpp": 0.2527,
    "labels": np.array([0, 1, 2, -1]),
    "slide_size": (98_304, 221_184),
    "bounds_origin": (0, 17),
    "stride": 448,
    "tile_px": 256,
    "encoder": EncoderId("uni_v2", "sha256:ab12"),
}
FIELDS = ("slide_id", "patch_size", *OPTIONAL)


def make_bag(**changes: Any) -> Bag:
    random = np.random.default_rng(0)
    arguments: dict[str, Any] = {
        "slide_id": "TCGA-3C-AALI",
        "features": random.standard_normal((4, 3)).astype(np.float32),
        "coords": np.array([[0, 0], [512, 0], [0, 512], [1024, 2048]]),
        "patch_size": 512,
    }
    return Bag(**(arguments | changes))


def assert_same(one: Bag, other: Bag) -> None:
    for name in ("features", "coords", "labels"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None)
        if left is not None:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
    for name in set(FIELDS) - {"labels"}:
        assert getattr(one, name) == getattr(other, name), name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slide.h5"


@pytest.fixture
def change(path: Path) -> Callable[[Callable[[h5py.File], Any]], Path]:
    """Writes a full bag as earlier versions did, then lets a function spoil the file."""

    def spoil(edit: Callable[[h5py.File], Any]) -> Path:
        write_bag(path, make_bag(**OPTIONAL))
        with h5py.File(path, "r+") as file:
            del file.attrs["checksum"]
            edit(file)
        return path

    return spoil


# What is written is read.


@pytest.mark.parametrize("present", [*([name] for name in OPTIONAL), [], list(OPTIONAL)])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_a_bag_reads_back_equal(path: Path, present: list[str], kind: str) -> None:
    features = make_bag().features.astype(kind)
    bag = make_bag(features=features, **{name: OPTIONAL[name] for name in present})
    write_bag(path, bag)
    assert_same(read_bag(path), bag)


positive = st.floats(1e-6, 1e9) | st.integers(1, 10**9)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
bags = st.builds(
    make_bag,
    slide_id=text,
    coords=st.lists(
        st.tuples(st.integers(-(2**40), 2**40), st.floats(-1e6, 1e6)),
        min_size=4,
        max_size=4,
        unique=True,
    ),
    patch_size=positive,
    mpp=st.none() | positive,
    stride=st.none() | positive,
    tile_px=st.none() | st.integers(1, 10_000),
    labels=st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
    slide_size=st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
    encoder=st.none() | st.builds(EncoderId, text.filter(lambda t: t != "None"), st.none() | text),
)


@given(bag=bags)
@settings(
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_bag_reads_back_equal(path: Path, bag: Bag) -> None:
    write_bag(path, bag)
    assert_same(read_bag(path), bag)


def test_equal_content_gives_equal_bytes_at_another_time_under_another_name(
    tmp_path: Path,
) -> None:
    write_bag(tmp_path / "one.h5", make_bag(**OPTIONAL))
    time.sleep(1.1)  # HDF5 keeps times in seconds
    write_bag(tmp_path / "elsewhere" / "two.h5", make_bag(**OPTIONAL))
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "elsewhere/two.h5").read_bytes()


def test_reading_changes_nothing(path: Path) -> None:
    write_bag(path, make_bag())
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)
    read_bag(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


# What TRIDENT's readers look for.


def test_trident_finds_its_names_types_and_attributes(path: Path) -> None:
    write_bag(path, make_bag(**OPTIONAL))
    with h5py.File(path) as file:
        assert file["features"].shape == (4, 3)
        assert file["coords"].dtype == np.int64
        assert file["features"].attrs["name"] == "TCGA-3C-AALI"
        assert file["features"].attrs["encoder"] == "uni_v2"
        assert file["features"].attrs["savetodir"] == "None"
        found = {name: file["coords"].attrs[name] for name in TRIDENT}
    assert found == TRIDENT
    assert all(isinstance(found[name], str) == isinstance(TRIDENT[name], str) for name in found)


# A 40x scan, tiles of 512 level-0 pixels shrunk to 256: 20x, and an overlap of 64 is 32 there.
TRIDENT = {
    "name": "TCGA-3C-AALI",
    "savetodir": "None",
    "patch_size": 256,
    "patch_size_level0": 512,
    "overlap": 32,
    "level0_magnification": 40,
    "target_magnification": 20,
    "level0_width": 98_304,
    "level0_height": 221_184,
}


def test_what_trident_asks_and_a_bag_does_not_know_is_the_text_none(path: Path) -> None:
    write_bag(path, make_bag())
    with h5py.File(path) as file:
        attributes = dict(file["coords"].attrs)
        assert file["features"].attrs["encoder"] == "None"
    unknown = {name for name, value in attributes.items() if isinstance(value, str)} - {"name"}
    assert unknown == {
        *("savetodir", "level0_magnification", "target_magnification"),
        *("level0_width", "level0_height"),
    }
    assert attributes["patch_size"] == attributes["patch_size_level0"] == 512
    assert attributes["overlap"] == 0
    assert {attributes[name] for name in unknown} == {"None"}


@pytest.mark.parametrize(
    ("mpp", "tile_px", "level0", "target"),
    [(0.25, 512, 40, 40), (0.5, 512, 20, 20), (0.25, 128, 40, 10), (0.5, 256, 20, 10)],
)
def test_magnifications_follow_the_resolution_and_the_shrinking(
    path: Path, mpp: float, tile_px: int, level0: int, target: int
) -> None:
    write_bag(path, make_bag(mpp=mpp, tile_px=tile_px))
    with h5py.File(path) as file:
        attributes = file["coords"].attrs
        assert (attributes["level0_magnification"], attributes["target_magnification"]) == (
            level0,
            target,
        )


def test_what_trident_lacks_is_there_too(path: Path) -> None:
    write_bag(path, make_bag(**OPTIONAL | {"mpp": 0.25}))
    with h5py.File(path) as file:
        assert file["coords"].attrs["mpp_level0"] == 0.25
        assert file["coords"].attrs["patch_size_um"] == 128
        assert file["features"].attrs["encoder_hash"] == "sha256:ab12"
        assert file["labels"][()].tolist() == [0, 1, 2, -1]
        assert file.attrs["sacmil_version"] == __version__


# A writer that dies.


KILLED = """
import os, signal, sys
from pathlib import Path
from sacmil import Bag, write_bag
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_bag(sys.argv[1], Bag("new", [[1.0, 2.0]], [[0, 0]], 256))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_writer_killed_before_the_rename_leaves_the_older_bag(path: Path) -> None:
    write_bag(path, make_bag(slide_id="old"))
    done = subprocess.run([sys.executable, "-c", KILLED, path], timeout=60, check=False)
    assert done.returncode == -9
    assert read_bag(path).slide_id == "old"


def test_a_full_disk_leaves_the_older_bag(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bag(path, make_bag(slide_id="old"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(h5py.File, "create_dataset", full)
    with pytest.raises(OSError, match="No space left"):
        write_bag(path, make_bag(slide_id="new"))
    monkeypatch.undo()
    assert read_bag(path).slide_id == "old"
    assert list(path.parent.iterdir()) == [path]


# Damage.


def test_a_file_cut_short_anywhere_is_rejected_with_its_name(path: Path) -> None:
    write_bag(path, make_bag(**OPTIONAL))
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError) as raised:
            read_bag(path)
        assert str(raised.value).startswith(f"{path}: "), length
        assert "\n" not in str(raised.value)


# Run apart, for HDF5's own C code crashes or loops on some damage, which no Python can catch.
FLIP = """
import json, signal, sys, warnings
from pathlib import Path
from sacmil.errors import FormatError
from sacmil.formats import read_bag
warnings.simplefilter("ignore")
def content(bag):
    values = vars(bag).values()
    return [(v.dtype, v.tobytes()) if hasattr(v, "tobytes") else v for v in values]
path, flips = Path(sys.argv[1]), json.loads(sys.argv[2])
whole, expected = path.read_bytes(), content(read_bag(path))
for flip in flips:
    damaged = bytearray(whole)
    damaged[flip // 8] ^= 1 << flip % 8
    path.write_bytes(damaged)
    signal.alarm(2)
    try:
        found = content(read_bag(path))
        outcome = "same bag" if found == expected else f"another bag: bit {flip}"
    except FormatError as error:
        outcome = "rejected" if str(path) in str(error) else f"unnamed: {error}"
    except BaseException as error:
        outcome = repr(error)
    print(outcome, flush=True)
"""


def read_with_flips(path: Path, flips: list[int]) -> tuple[list[str], int]:
    """What became of reading the file with each bit flipped, and how often HDF5 crashed."""
    whole = path.read_bytes()
    outcomes: list[str] = []
    crashes = 0
    while flips:
        path.write_bytes(whole)
        command = [sys.executable, "-c", FLIP, str(path), json.dumps(flips)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        lines = done.stdout.splitlines()
        assert lines or done.returncode < 0, done.stderr
        outcomes += lines
        crashes += done.returncode != 0
        flips = flips[len(lines) + 1 :] if done.returncode else []
    return outcomes, crashes


def bits_of(whole: bytes, content: bytes) -> range:
    """Where in the file the bits of some content are."""
    start = whole.index(content)
    return range(8 * start, 8 * (start + len(content)))


def write_full_bag(path: Path) -> Bag:
    bag = make_bag(**OPTIONAL, provenance={"settings": {"mpp": 0.5}, "weights": "ab12"})
    write_bag(path, bag)
    return bag


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no alarm")
def test_a_flipped_bit_changes_no_bag_without_an_error_that_names_the_file(path: Path) -> None:
    bag = write_full_bag(path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    flips = random.integers(8 * len(whole), size=40).tolist()
    for array in (bag.features, bag.coords, bag.labels):
        bits = bits_of(whole, np.ascontiguousarray(array).tobytes())
        flips += random.choice(bits, size=6).tolist()
    texts = ["sacmil bag", "TCGA-3C-AALI", "uni_v2", "sha256:ab12", '"weights": "ab12"', "coords="]
    flips += [random.choice(bits_of(whole, text.encode())) for text in texts]
    outcomes, crashes = read_with_flips(path, [int(flip) for flip in flips])
    assert set(outcomes) == {"same bag", "rejected"}
    assert outcomes[40:] == ["rejected"] * 24
    assert crashes <= 1  # texts lie in a heap of which HDF5 keeps no checksum


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no alarm")
def test_no_bit_in_all_of_a_file_changes_its_bag_without_an_error(path: Path) -> None:
    write_full_bag(path)
    outcomes, _ = read_with_flips(
        path, choose_cases(list(range(0, 8 * path.stat().st_size, 7)), step=7)
    )
    assert set(outcomes) == {"same bag", "rejected"}


# Checksums.


def flip_bit(path: Path, content: bytes) -> None:
    """Flips a bit in the middle of some content, and leaves the file's times as they were."""
    facts, whole = path.stat(), bytearray(path.read_bytes())
    whole[whole.index(content) + len(content) // 2] ^= 4
    path.write_bytes(whole)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("name", ["features", "coords", "labels"])
def test_a_message_says_which_array_is_damaged_and_what_to_do(path: Path, name: str) -> None:
    bag = write_full_bag(path)
    flip_bit(path, getattr(bag, name).tobytes())
    with pytest.raises(FormatError) as raised:
        read_bag(path)
    assert str(raised.value).startswith(f"{path}: {name} have changed since the file was written")
    assert "restore it from a copy, or delete it and extract" in str(raised.value)


def test_a_bag_with_a_damaged_layout_is_not_read_as_tridents(path: Path) -> None:
    write_full_bag(path)
    flip_bit(path, b"sacmil bag")
    with pytest.raises(FormatError, match="attributes have changed"):
        read_bag(path)


@pytest.mark.parametrize("place", ["/", "features", "coords"])
def test_every_attribute_that_the_reader_uses_is_in_the_checksum(path: Path, place: str) -> None:
    write_full_bag(path)
    with h5py.File(path) as file:
        names = set(file[place].attrs) - {"checksum", "sacmil_version", "savetodir"}
    whole = path.read_bytes()
    for name in names:
        path.write_bytes(whole)
        with h5py.File(path, "r+") as file:
            del file[place].attrs[name]
        with pytest.raises(FormatError, match=r"attributes have changed|schema version 0"):
            read_bag(path)


def test_a_file_is_verified_once_per_process_until_it_changes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_full_bag(path)
    os.utime(path, ns=(10**18, 10**18))
    calls: list[int] = []
    compute = native.compute_checksum
    monkeypatch.setattr(
        native, "compute_checksum", lambda *given: calls.append(1) or compute(*given)
    )
    for _ in range(3):
        read_bag(path)
    assert len(calls) == 1
    os.utime(path, ns=(2 * 10**18, 2 * 10**18 - 10**9))
    read_bag(path)
    assert len(calls) == 2


def test_a_bag_without_a_checksum_is_read_as_earlier_versions_wrote_it(change: Any) -> None:
    path = change(lambda file: None)
    with h5py.File(path) as file:
        assert "checksum" not in file.attrs
    assert_same(read_bag(path), make_bag(**OPTIONAL))


def test_attributes_of_other_tools_do_not_make_a_bag_invalid(path: Path) -> None:
    bag = write_full_bag(path)
    with h5py.File(path, "r+") as file:
        file["features"].attrs["comment"] = "seen by Ann"
        file["clusters"] = np.arange(4)
    assert_same(read_bag(path), bag)


# Files that are not, or not quite, of this layout.


def delete_attribute(dataset: str, name: str) -> Callable[[h5py.File], Any]:
    return lambda file: file[dataset].attrs.pop(name)


def set_attribute(dataset: str, name: str, value: Any) -> Callable[[h5py.File], Any]:
    return lambda file: file[dataset].attrs.update({name: value})


def replace(name: str, value: Any) -> Callable[[h5py.File], Any]:
    def edit(file: h5py.File) -> None:
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = value
        file[name].attrs.update(attributes)

    return edit


def make_group(name: str) -> Callable[[h5py.File], Any]:
    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_group(name)

    return edit


def dangle(file: h5py.File) -> None:
    del file["coords"]
    file["coords"] = h5py.SoftLink("/nowhere")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda f: f.pop("coords"), "holds features, labels, but no coords"),
        (lambda f: f.pop("features"), "but no features; expected 'features' (N, D)"),
        (make_group("features"), "but no features"),
        (dangle, "but no coords"),
        (lambda f: f.attrs.update(schema_version=2), "has schema version 2; this sacmil"),
        (lambda f: f.attrs.pop("schema_version"), "has schema version 0"),
        (lambda f: f.attrs.update(schema_version="two"), "'two'"),
        (replace("features", np.full((4, 3), np.nan)), "4 of 4 instances hold NaN"),
        (replace("features", np.ones((1, 4, 3))), "(1, 4, 3); expected (N, D)"),
        (replace("features", np.ones((5, 3))), "(4, 2) beside 5 feature rows"),
        (replace("features", np.array([b"a"] * 4)), "(4,); expected (N, D)"),
        (replace("features", np.array([["a"]] * 4, dtype=object)), "object; expected float16"),
        (replace("coords", np.ones((4, 3), int)), "(4, 3)"),
        (replace("coords", np.ones((4, 2)) * np.inf), "NaN or infinity"),
        (replace("labels", np.arange(3)), "labels have shape (3,)"),
        (delete_attribute("coords", "patch_size_level0"), "'patch_size_level0' is missing"),
        (delete_attribute("features", "name"), "'name' is missing"),
        (delete_attribute("coords", "level0_height"), "'level0_height' is missing"),
        (set_attribute("coords", "patch_size_level0", "None"), "'patch_size_level0' is missing"),
        (set_attribute("coords", "patch_size_level0", "wide"), "of the wrong kind"),
        (set_attribute("coords", "patch_size_level0", [1, 2]), "of the wrong kind"),
        (set_attribute("coords", "patch_size_level0", -512), "patch_size is -512"),
        (set_attribute("coords", "mpp_level0", 0.0), "mpp is 0.0"),
        (set_attribute("coords", "mpp_level0", float("nan")), "mpp is nan"),
        (set_attribute("coords", "level0_width", "wide"), "of the wrong kind"),
        (set_attribute("coords", "level0_width", float("inf")), "of the wrong kind"),
        (set_attribute("coords", "level0_width", 1e300), "slide_size is"),
        (set_attribute("coords", "bounds_x", float("nan")), "of the wrong kind"),
        (lambda f: f.attrs.update(provenance="[" * 30_000 + "]" * 30_000), "too deeply"),
        (replace("coords", np.full((4, 2), 1e300)), "coordinates reach 1e+300"),
        (set_attribute("features", "encoder_hash", 5), "encoder is"),
        (set_attribute("features", "name", ""), "slide_id is ''"),
    ],
)
def test_a_spoilt_bag_is_rejected_with_its_name_and_its_fault(
    change: Any, edit: Callable[[h5py.File], Any], expected: str
) -> None:
    path = change(edit)
    with pytest.raises(FormatError) as raised:
        read_bag(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "\n" not in message


def test_features_larger_than_memory_are_rejected(change: Any) -> None:
    def edit(file: h5py.File) -> None:
        del file["features"]
        file.create_dataset("features", shape=(2**40, 2**20), chunks=(1, 2**10), dtype="f4")

    with pytest.raises(FormatError, match=r"'features' declares .* but stores 0 bytes"):
        read_bag(change(edit))


def test_a_bag_written_by_native_matches_and_nothing_else_does(change: Any) -> None:
    assert native.matches(change(lambda file: None))
    assert not native.matches(change(lambda file: file.attrs.pop("layout")))
    assert not native.matches(change(lambda file: file.attrs.update(layout=["sacmil bag"] * 2)))
    assert not native.matches(change(lambda file: file.attrs.update(layout="another")))


def test_threads_write_bags_at_the_same_time(tmp_path: Path) -> None:
    def write(number: int) -> bytes:
        bag = Bag(
            str(number), np.full((200, 64), number, "f4"), np.arange(400).reshape(200, 2) * 256, 256
        )
        write_bag(tmp_path / f"{number}.h5", bag)
        return (tmp_path / f"{number}.h5").read_bytes()

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(write, range(20)))
    assert together == [write(number) for number in range(20)]
