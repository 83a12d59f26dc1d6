"""One loader for models, runs and exports; what it loads predicts the mean of its members."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from answering import CLASSES, make_bag, write_model, write_run

from sacmil import load_model, predict
from sacmil.card import read_card
from sacmil.deploy.load import load_ensemble, load_ensembles
from sacmil.deploy.runtime import load_runtime
from sacmil.errors import ModelFolderError, RunError
from sacmil.tasks import get_model_task


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
    np.testing.assert_array_equal(prediction.members, probabilities)


def test_one_model_gives_its_own_answer_and_no_spread(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (ensemble,) = load_ensembles([folder])
    bag = make_bag("s")
    prediction, single = ensemble.predict(bag), predict(load_model(folder), bag)
    np.testing.assert_array_equal(prediction.probabilities, single.probabilities)
    np.testing.assert_array_equal(prediction.scores, single.scores)
    assert prediction.spread is None
    assert ensemble.hash == read_card(folder).weights_sha256


def test_a_single_output_speaks_of_two_classes(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", num_classes=1, classes=("tumour",))
    (ensemble,) = load_ensembles([folder])
    prediction = ensemble.predict(make_bag("s"))
    assert ensemble.classes == ("not tumour", "tumour")
    assert prediction.probabilities.sum() == pytest.approx(1)
    assert (
        prediction.probabilities[1] == predict(load_model(folder), make_bag("s")).probabilities[1]
    )


def test_a_model_without_class_names_gets_numbers(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", num_classes=3, classes=None)
    assert load_ensembles([folder])[0].classes == ("class_0", "class_1", "class_2")


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


@pytest.mark.parametrize("name", ["member", "part"])
def test_members_of_an_export_are_loaded_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from sacmil.deploy import load, runtime

    for number in range(11):  # member_10 comes after member_9
        folder = write_model(tmp_path / "exported" / f"{name}_{number}", seed=number)
        (folder / "model.onnx").write_bytes(b"")
    loaded: list[str] = []

    class FakeRuntime:
        def __init__(self, folder: Path, **_: object) -> None:
            self.folder, self.card = folder, read_card(folder)
            self.task, self.hash = get_model_task(self.card), self.card.weights_sha256
            self.classes = self.task.value_names
            loaded.append(folder.name)

    for module in (load, runtime):
        monkeypatch.setattr(module, "Runtime", FakeRuntime)
    ensemble = load_ensemble(tmp_path / "exported")
    assert loaded == [f"{name}_{number}" for number in range(11)]
    assert ensemble.classes == CLASSES
    assert load_runtime(tmp_path / "exported").hash == ensemble.hash


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["abmil", "clam_mb"])
def test_torch_and_onnx_predict_the_same_for_a_run_of_two_folds(tmp_path: Path, kind: str) -> None:
    from sacmil.deploy.export import export_model

    run = tmp_path / "run"
    for fold in range(2):
        write_model(run / kind / "seed_0" / f"fold_{fold}", seed=fold, kind=kind)
    export_model(run, tmp_path / "exported", sizes=[5])
    torch_model, exported = load_ensemble(run), load_ensemble(tmp_path / "exported")
    runtime = load_runtime(tmp_path / "exported")
    assert torch_model.hash == exported.hash == runtime.hash
    for seed in range(2):
        bag = make_bag("s", seed)
        expected = torch_model.predict(bag)
        for found in (exported.predict(bag), runtime.predict(bag)):
            np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
            np.testing.assert_allclose(found.members, expected.members, atol=1e-5)
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)  # ranks
            assert (found.class_scores is None) == (kind == "abmil")
            assert found.score_class == expected.score_class
            if found.class_scores is not None:
                np.testing.assert_allclose(found.class_scores, expected.class_scores, atol=1e-6)


@pytest.mark.parametrize("lost", ["member_1/model.onnx", "member_1"])
def test_an_exported_run_that_lost_a_part_does_not_answer_without_it(
    tmp_path: Path, lost: str
) -> None:
    for part in range(3):
        folder = write_model(tmp_path / "exported" / f"member_{part}")
        (folder / "model.onnx").write_bytes(b"")
    gone = tmp_path / "exported" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    with pytest.raises(ModelFolderError, match=r"member_1/model.onnx is missing"):
        load_ensembles([tmp_path / "exported"])


def test_a_single_output_has_no_scores_per_class_but_its_own(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", kind="dsmil", num_classes=1, classes=("tumour",))
    (ensemble,) = load_ensembles([folder])
    bag = make_bag("s")
    output = load_model(folder)(torch.from_numpy(bag.features), torch.from_numpy(bag.patch_coords))
    prediction = ensemble.predict(bag)
    np.testing.assert_array_equal(prediction.scores, output.class_scores[:, 0].detach())
    assert prediction.class_scores is None
    assert prediction.score_class == 1
