"""An ensemble is the mean of its members, and says how far they are apart."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answering import CLASSES, make_bag, write_model, write_run

from sacmil import load_model, predict
from sacmil.card import combine_hashes, read_card
from sacmil.errors import InputError, ModelFolderError, RunError
from sacmil.results import Prediction
from sacmil.workflows.ensemble import MemberPredictions, average_predictions, load_ensembles


def test_a_run_answers_with_the_mean_of_its_parts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (ensemble,) = load_ensembles([run])
    bag = make_bag("s")
    prediction = ensemble.predict(bag)
    parts = [
        predict(load_model(card.parent), bag) for card in sorted(run.glob("abmil/*/*/card.json"))
    ]
    probabilities = np.stack([part.probabilities for part in parts])
    assert len({tuple(row) for row in probabilities.tolist()}) == 3
    np.testing.assert_allclose(prediction.probabilities, probabilities.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(prediction.spread, probabilities.std(axis=0), atol=1e-12)
    np.testing.assert_array_equal(prediction.member_probabilities, probabilities)


def test_what_is_no_number_is_no_answer(tmp_path: Path) -> None:
    (ensemble,) = load_ensembles([write_model(tmp_path / "m")])
    lost = Prediction("s", np.array([np.nan, np.nan]), np.zeros(12, np.float32))
    member = SimpleNamespace(card=ensemble.card, predict=lambda bag: lost)
    with pytest.raises(InputError, match=r"\[nan, nan\], which are not probabilities"):
        replace(ensemble, members=(member,)).predict(make_bag("s"))


def test_scores_of_members_are_joined_by_rank_for_their_scales_differ() -> None:
    def make_member(*scores: float) -> MemberPredictions:
        given = np.array([0.5, 0.5])
        return MemberPredictions(given, given[None], np.array(scores, np.float32))

    joint = average_predictions([make_member(1, 2, 3), make_member(3000, 1000, 2000)])
    np.testing.assert_allclose(joint.scores, [0.5, 0.25, 0.75])
    scaled = average_predictions([make_member(10, 20, 30), make_member(3, 1, 2)])
    np.testing.assert_array_equal(joint.scores, scaled.scores)


def test_one_model_gives_its_own_answer_and_no_spread(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (ensemble,) = load_ensembles([folder])
    bag = make_bag("s")
    prediction, single = ensemble.predict(bag), predict(load_model(folder), bag)
    np.testing.assert_array_equal(prediction.probabilities, single.probabilities)
    np.testing.assert_array_equal(prediction.scores, single.scores)
    assert prediction.spread is None
    assert ensemble.hash == read_card(folder)["weights_sha256"]


def test_a_single_output_speaks_of_two_classes(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", num_classes=1, classes=("tumour",))
    (ensemble,) = load_ensembles([folder])
    prediction = ensemble.predict(make_bag("s"))
    assert ensemble.classes == ("not tumour", "tumour")
    assert prediction.probabilities.sum() == pytest.approx(1)
    assert (
        prediction.probabilities[1] == predict(load_model(folder), make_bag("s")).probabilities[0]
    )


def test_a_model_without_class_names_gets_numbers(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", num_classes=3, classes=None)
    assert load_ensembles([folder])[0].classes == ("class_0", "class_1", "class_2")


def test_the_hash_of_several_depends_on_each_and_on_their_order() -> None:
    found = {combine_hashes(hashes) for hashes in (["a", "b"], ["b", "a"], ["a"], ["a", "b", "c"])}
    assert len(found) == 4


def test_models_are_named_by_as_much_of_their_path_as_needed(tmp_path: Path) -> None:
    for place in ("x/model", "y/model", "ensemble"):
        write_model(tmp_path / place)
    two = load_ensembles([tmp_path / "x/model", tmp_path / "y/model"])
    assert [one.name for one in two] == ["x/model", "y/model"]
    (joint,) = load_ensembles([tmp_path / "ensemble"])
    assert joint.name == f"{tmp_path.name}/ensemble", "that name is reserved for the ensemble"
    twice = load_ensembles([tmp_path / "x/model", tmp_path / "x" / ".." / "x" / "model"])
    assert len(twice) == 1


def test_models_of_different_classes_are_rejected(tmp_path: Path) -> None:
    write_model(tmp_path / "one")
    write_model(tmp_path / "two", classes=("tumour", "normal"))
    with pytest.raises(ModelFolderError, match=r"one: normal, tumour; two: tumour, normal"):
        load_ensembles([tmp_path / "one", tmp_path / "two"])


def _without_hash(card: Path) -> dict[str, Any]:
    """The card, as it is edited on purpose."""
    content = json.loads(card.read_text())
    del content["card_sha256"]
    return content


def test_parts_of_different_classes_are_no_ensemble(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    card = run / "abmil" / "seed_0" / "fold_0" / "card.json"
    card.write_text(json.dumps(_without_hash(card) | {"classes": ["a", "b"]}))
    with pytest.raises(ModelFolderError, match="its models have different classes"):
        load_ensembles([run])


@pytest.mark.parametrize("classes", [["a"], ["a", "b", "c"], ["a", "a"]])
def test_a_card_whose_classes_are_not_the_outputs_is_refused(
    tmp_path: Path, classes: list[str]
) -> None:
    folder = write_model(tmp_path / "m")
    card = folder / "card.json"
    card.write_text(json.dumps(_without_hash(card) | {"classes": classes}))
    with pytest.raises(ModelFolderError, match=r"for 2 outputs; expected a different name"):
        load_ensembles([folder])


def test_what_is_no_model_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="neither a model folder"):
        load_ensembles([tmp_path])


@pytest.mark.parametrize("parts", [["."], [f"part_{number}" for number in range(11)]])
def test_an_exported_folder_goes_to_the_runtime_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[str]
) -> None:
    from sacmil.deploy import runtime

    for part in parts:
        folder = write_model(tmp_path / "exported" / part)
        (folder / "model.onnx").write_bytes(b"")
        (folder / "model.safetensors").unlink()
    loaded: list[str] = []

    def load(folder: Path) -> Any:
        loaded.append(folder.name)
        answer = Prediction("s", np.array([0.25, 0.75]), np.zeros(2, np.float32))
        return SimpleNamespace(card=read_card(folder), predict=lambda bag: answer)

    monkeypatch.setattr(runtime, "load", load)
    (ensemble,) = load_ensembles([tmp_path / "exported"])
    assert len(ensemble.members) == len(parts)
    assert ensemble.classes == CLASSES
    if len(parts) > 1:
        assert loaded == parts


@pytest.mark.parametrize("lost", ["part_1/model.onnx", "part_1"])
def test_an_exported_run_that_lost_a_part_does_not_answer_without_it(
    tmp_path: Path, lost: str
) -> None:
    for part in range(3):
        folder = write_model(tmp_path / "exported" / f"part_{part}")
        (folder / "model.onnx").write_bytes(b"")
    gone = tmp_path / "exported" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    with pytest.raises(ModelFolderError, match=r"part_1/model.onnx is missing"):
        load_ensembles([tmp_path / "exported"])


def test_a_single_output_has_no_scores_per_class_but_its_own(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", kind="dsmil", num_classes=1, classes=("tumour",))
    (ensemble,) = load_ensembles([folder])
    single = predict(load_model(folder), make_bag("s"))
    prediction = ensemble.predict(make_bag("s"))
    np.testing.assert_array_equal(prediction.scores, single.class_scores[:, 0])
    assert prediction.class_scores is None
