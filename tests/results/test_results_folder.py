"""A results folder reads back as it was written, and nothing in it leads out of it."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacmil.errors import RunError
from sacmil.results import (
    InstanceScores,
    ModelInfo,
    Results,
    SlideResult,
    StoredPrediction,
    read_results,
    read_scores,
    write_results,
    write_scores,
)

few = settings(
    deadline=None,
    max_examples=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ANSWER = StoredPrediction(
    "m", (0.25, 0.75), (0.1, 0.1), "scores/m/s.npz", {"score": "heatmaps/m/s.png"}
)
SLIDE = SlideResult("s", (ANSWER,), "tumour", "/far/s.svs", "thumbnails/s.jpg", None, 0.5, (9, 7))
RESULTS = Results(("normal", "tumour"), (ModelInfo("m", "ab", 3),), (SLIDE,))


@st.composite
def results(draw: st.DrawFn) -> Results:
    classes = draw(st.lists(names, min_size=2, max_size=3, unique=True))
    models = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    count = len(classes)
    spread = st.none() | st.tuples(*[st.floats(0, 1)] * count)
    part = st.builds(
        lambda model, spread: StoredPrediction(model, (1.0, *[0.0] * (count - 1)), spread),
        st.sampled_from(models),
        spread,
    )
    size = st.none() | st.tuples(st.integers(1, 10**6), st.integers(1, 10**6))
    slide = st.builds(
        lambda name, answers, mpp, size: SlideResult(name, tuple(answers), mpp=mpp, size=size),
        names,
        st.lists(part, max_size=3),
        st.none() | st.floats(0.01, 10),
        size,
    )
    made = tuple(ModelInfo(name, "00") for name in models)
    return Results(
        tuple(classes),
        made,
        tuple(draw(st.lists(slide, max_size=3, unique_by=lambda one: one.slide_id))),
    )


@few
@given(results())
def test_what_is_written_reads_back(tmp_path: Path, made: Results) -> None:
    write_results(tmp_path, made)
    assert read_results(tmp_path) == made


def test_every_field_reads_back(tmp_path: Path) -> None:
    write_results(tmp_path, RESULTS)
    assert read_results(tmp_path) == RESULTS


OUTSIDE = [
    "../x",
    "/etc/passwd",
    "a/../../x",
    "..",
    "c:x",
    "a\\..\\x",
    "\\\\host\\x",
    "a\0b",
    "",
    ".",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("where", ["scores", "heatmap", "thumbnail", "truth"])
def test_a_path_that_leads_out_is_rejected(tmp_path: Path, path: str, where: str) -> None:
    answer = {"scores": {"scores": path}, "heatmap": {"heatmaps": {"score": path}}}.get(where, {})
    slide = {where: path} if where in ("thumbnail", "truth") else {}
    made = replace(SLIDE, answers=(replace(ANSWER, **answer),), **slide)
    write_results(tmp_path, replace(RESULTS, slides=(made,)))
    with pytest.raises(RunError, match="points outside the folder"):
        read_results(tmp_path)


def test_only_the_slide_itself_may_lie_anywhere(tmp_path: Path) -> None:
    made = replace(RESULTS, slides=(replace(SLIDE, slide="../../slides/s.svs"),))
    write_results(tmp_path, made)
    assert read_results(tmp_path).slides[0].slide == "../../slides/s.svs"


def changed(**changes: Any) -> dict[str, Any]:
    answer = {"model": "m", "probabilities": [0.5, 0.5], "heatmaps": {}} | changes.pop("answer", {})
    slide = {"slide_id": "s", "answers": [answer]} | changes.pop("slide", {})
    model = {"name": "m", "hash": "ab", "members": 1} | changes.pop("model", {})
    whole = {"schema_version": 1, "classes": ["a", "b"], "models": [model], "slides": [slide]}
    return whole | changes


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        changed(schema_version=2),
        changed(slides=3),
        changed(slides=[None]),
        changed(slides=changed()["slides"] * 2),
        changed(classes=None),
        changed(model={"name": 3}),
        changed(model={"hash": None}),
        changed(model={"surprise": 1}),
        changed(slide={"slide_id": ["s"]}),
        changed(slide={"surprise": 1}),
        changed(slide={"size": [1]}),
        changed(slide={"size": "ab"}),
        changed(slide={"mpp": "fine"}),
        changed(slide={"mpp": -1}),
        changed(slide={"mpp": float("nan")}),
        changed(slide={"mpp": 10**400}),
        changed(slide={"size": [float("inf"), 1]}),
        changed(slide={"thumbnail": 7}),
        changed(answer={"model": "another"}),
        changed(answer={"model": ["m"]}),
        changed(answer={"probabilities": [1.0]}),
        changed(answer={"probabilities": [0.9, 0.9]}),
        changed(answer={"probabilities": [float("nan"), 1.0]}),
        changed(answer={"probabilities": [2.0, -1.0]}),
        changed(answer={"probabilities": None}),
        changed(answer={"spread": [0.1]}),
        changed(answer={"spread": [float("inf"), 0.1]}),
        changed(answer={"heatmaps": ["x"]}),
        changed(answer={"heatmaps": {"score": 5}}),
    ],
)
def test_what_no_prediction_wrote_is_rejected_in_one_sentence(tmp_path: Path, content: Any) -> None:
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"is not a valid file of sacmil predict") as raised:
        read_results(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "results.json").write_bytes(data)
    with pytest.raises(RunError, match="cannot be read as JSON"):
        read_results(tmp_path)


def test_a_folder_without_results_says_what_writes_them(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="sacmil predict"):
        read_results(tmp_path)


# Scores.


def scores(count: int = 5, **changes: Any) -> InstanceScores:
    random = np.random.default_rng(0)
    made = InstanceScores(
        random.integers(0, 99, (count, 2)),
        256.5,
        random.standard_normal(count).astype(np.float32),
        random.standard_normal((count, 3)).astype(np.float32),
    )
    return replace(made, **changes)


@pytest.mark.parametrize("made", [scores(), scores(class_scores=None)])
def test_scores_read_back_to_the_last_bit(tmp_path: Path, made: InstanceScores) -> None:
    write_scores(tmp_path / "s.npz", made)
    found = read_scores(tmp_path / "s.npz")
    np.testing.assert_array_equal(found.coords, made.coords)
    np.testing.assert_array_equal(found.scores, made.scores)
    assert found.patch_size == 256.5
    assert (found.class_scores is None) == (made.class_scores is None)
    if made.class_scores is not None:
        np.testing.assert_array_equal(found.class_scores, made.class_scores)


def saved(**arrays: Any) -> bytes:
    whole = {"coords": np.zeros((2, 2)), "patch_size": 1.0, "scores": np.zeros(2)} | arrays
    buffer = io.BytesIO()
    np.savez(buffer, **{name: value for name, value in whole.items() if value is not None})
    return buffer.getvalue()


def pickled() -> bytes:
    return saved(scores=np.array([{"a": 1}, None], dtype=object))


def one_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def with_bytes(name: str) -> bytes:
    """Scores of which one member is no array."""
    buffer = io.BytesIO(saved(**{name: None}))
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr(f"{name}.npy", "no array")
    return buffer.getvalue()


def other_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("scores.npy", "no array")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        saved()[:-30],
        pickled(),
        one_array(),
        other_zip(),
        saved(scores=None),
        saved(coords=np.zeros((3, 2))),
        saved(scores=np.float32(1)),
        saved(scores=np.zeros((2, 1))),
        saved(scores=np.array([np.nan, 1])),
        saved(scores=np.array(["a", "b"])),
        saved(class_scores=np.zeros((3, 2))),
        saved(class_scores=np.zeros(2)),
        saved(patch_size=np.ones(2)),
        saved(patch_size=0.0),
        saved(patch_size=np.nan),
        with_bytes("coords"),
        with_bytes("scores"),
    ],
)
def test_a_file_that_holds_no_scores_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "s.npz").write_bytes(data)
    with pytest.raises(RunError, match=r"s\.npz: "):
        read_scores(tmp_path / "s.npz")


def test_scores_larger_than_memory_are_rejected_in_plain_words(tmp_path: Path) -> None:
    header = np.lib.format.magic(1, 0) + b"\x76\x00"
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }" % 10**15
    with zipfile.ZipFile(tmp_path / "declared.npz", "w") as archive:
        archive.writestr("scores.npy", header + shape.ljust(117) + b"\n")
    np.savez_compressed(tmp_path / "bomb.npz", scores=np.zeros(10**7, np.float32))
    with pytest.raises(RunError, match=r"declares 38\.1 MiB but stores"):
        read_scores(tmp_path / "bomb.npz")
    with pytest.raises(RunError, match="declares more numbers than memory holds"):
        read_scores(tmp_path / "declared.npz")


@few
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_damaged_byte_gives_scores_or_a_sentence(tmp_path: Path, place: int, byte: int) -> None:
    file = tmp_path / "s.npz"
    write_scores(file, scores())
    data = bytearray(file.read_bytes())
    data[place % len(data)] = byte
    file.write_bytes(data)
    with contextlib.suppress(RunError):
        assert len(read_scores(file).scores) == 5
