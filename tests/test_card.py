"""A card says all of a model; a damaged one is refused with the file's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sacmil.card import CARD_FILE, SCHEMA_VERSION, Card, find_model_folders, read_card
from sacmil.errors import ModelFolderError, RunWarning

CARD = Card(
    model="sac_mil",
    options={"in_dim": 3},
    weights_sha256="ab",
    classes=("no", "yes"),
    notes={"by": "é"},
)
GOOD = {key: value for key, value in CARD.to_dict().items() if key != "card_sha256"}


def write(folder: Path, text: str | bytes) -> Path:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / CARD_FILE).write_bytes(data)
    return folder


def test_a_card_reads_back_as_it_was_made(tmp_path: Path) -> None:
    assert read_card(write(tmp_path, json.dumps(GOOD))) == CARD
    sealed = read_card(write(tmp_path, CARD.to_json()))
    assert sealed.card_sha256 == CARD.to_dict()["card_sha256"]
    assert sealed.model_copy(update={"card_sha256": None}) == CARD


def test_nothing_in_a_card_depends_on_when_it_was_made() -> None:
    assert set(GOOD) == {
        *("schema_version", "sacmil_version", "model", "options", "classes"),
        *("weights_sha256", "notes"),
    }


@pytest.mark.parametrize("key", ["schema_version", "model", "options", "weights_sha256"])
@pytest.mark.parametrize("value", ["missing", None, [], 1.5])
def test_a_missing_or_misshapen_field_is_named(tmp_path: Path, key: str, value: Any) -> None:
    card = {k: v for k, v in GOOD.items() if k != key or value != "missing"}
    if value != "missing":
        card[key] = value
    with pytest.raises(ModelFolderError, match=key) as raised:
        read_card(write(tmp_path, json.dumps(card)))
    assert str(tmp_path / CARD_FILE) in str(raised.value)


@pytest.mark.parametrize("classes", ["no,yes", [1, 2], {"no": 0}])
def test_classes_that_are_not_names_are_refused(tmp_path: Path, classes: Any) -> None:
    with pytest.raises(ModelFolderError, match="classes"):
        read_card(write(tmp_path, json.dumps(GOOD | {"classes": classes})))


@pytest.mark.parametrize("notes", [None, 3, {"training": 3}, {"training": {"seen": [[1]]}}])
def test_notes_that_cannot_be_looked_up_are_refused(tmp_path: Path, notes: Any) -> None:
    with pytest.raises(ModelFolderError, match="notes"):
        read_card(write(tmp_path, json.dumps(GOOD | {"notes": notes})))


def test_a_card_without_class_names_has_none(tmp_path: Path) -> None:
    card = {key: value for key, value in GOOD.items() if key != "classes"}
    assert read_card(write(tmp_path, json.dumps(card))).classes is None


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 10**6, 0, -1])
def test_a_card_of_another_schema_is_refused_with_both_versions(
    tmp_path: Path, version: int
) -> None:
    with pytest.raises(ModelFolderError, match=rf"version {version};.*up to {SCHEMA_VERSION}"):
        read_card(write(tmp_path, json.dumps(GOOD | {"schema_version": version})))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(json.dumps(GOOD)[:-5], id="cut short"),
        pytest.param("[]", id="a list"),
        pytest.param("null", id="null"),
        pytest.param(b"\xff\xfe\x00", id="not text"),
        pytest.param("[" * 200_000, id="nested too deep"),
        pytest.param('{"schema_version": ' + "1" * 5000 + "}", id="a number too long"),
    ],
)
def test_what_is_not_a_card_is_refused_with_its_name(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ModelFolderError) as raised:
        read_card(write(tmp_path, text))
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["nothing", "an empty folder", "a file"])
def test_what_is_not_a_model_folder_is_refused_with_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model"
    if kind == "an empty folder":
        path.mkdir()
    elif kind == "a file":
        path.write_text("x")
    with pytest.raises(ModelFolderError, match=str(path)):
        read_card(path)


def test_a_run_whose_folds_are_not_all_finished_says_so(tmp_path: Path) -> None:
    (tmp_path / "splits").mkdir()
    for fold in range(3):
        (tmp_path / "splits" / f"splits_{fold}.csv").touch()
    seeds = [tmp_path / "abmil" / seed for seed in ("seed_0", "seed_1")]
    parts = [seed / f"fold_{fold}" for seed in seeds for fold in range(3)]
    for part in parts:
        part.mkdir(parents=True)
        (part / CARD_FILE).touch()
    assert find_model_folders(tmp_path / "abmil") == parts  # and a warning would be an error here
    (parts[1] / CARD_FILE).unlink()
    with pytest.warns(
        RunWarning, match=r"abmil: 5 of 6 models are trained, and only these are used"
    ):
        assert find_model_folders(tmp_path / "abmil") == [parts[0], *parts[2:]]
