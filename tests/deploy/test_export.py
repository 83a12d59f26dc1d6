"""Exporting: the graph answers as torch does for bags of any size, or it is not written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exhaustive import choose_cases
from small_models import make_bag, make_model

import sacmil
from sacmil import list_models, load_model, predict, save_model
from sacmil.card import ONNX_FILE
from sacmil.deploy import export
from sacmil.deploy.export import LARGE_BAG_SIZES, explain_not_exportable, export_model, read_parity
from sacmil.deploy.runtime import load
from sacmil.errors import ModelError, ModelFolderError
from sacmil.models._base import MILModel, Output
from sacmil.models._registry import get_model_class
from sacmil.nn.correlations import CORRELATION_BLOCKS
from sacmil.nn.positions import POSITIONS
from sacmil.plans import Planner
from sacmil.results import Ensemble

EXPORTABLE = [name for name in list_models() if not get_model_class(name).not_exportable]
SLOW_TO_DRAW = {
    *("mammil", "longnet", "transmil", "hipt", "mambamil", "ibmil", "sac_mil_dual"),
    *("r2t", "dtfd", "dsmil"),
}
"""Scans, branches and attention over attention take the exporter up to a minute."""
DRAWN_LIKE_CLAM_MB = {"clam_sb", "abmil_gated"}
"""Their graphs have no operation that the graph of clam_mb has not."""
SMALLER_STILL: dict[str, dict[str, Any]] = {"sac_mil_local": {"depth": 1}}
"""Options of models whose blocks are all drawn alike."""
EXPORTED_ELSEWHERE = {"abmil", "sac_mil"}
"""By the fixtures, which other tests use too."""
SIZES = [1, 2, 3, 4, 5, 9, 63, 64, 65, 300]


def same(folder: Path, source: Path, *sizes: int) -> None:
    """Whether the runtime's predictions are torch's, for bags the export did not try."""
    runtime, model = load(folder), load_model(source)
    for n in sizes:
        bag = make_bag(n, seed=7)
        found, wanted = runtime.predict(bag), predict(model, bag)
        assert found.classes == wanted.classes
        np.testing.assert_allclose(found.probabilities, wanted.probabilities, atol=1e-4)
        largest = np.abs(wanted.scores).max()
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4 * largest)
        assert (found.class_scores is None) == (wanted.class_scores is None)
        if wanted.class_scores is not None:
            largest = np.abs(wanted.class_scores).max()
            np.testing.assert_allclose(found.class_scores, wanted.class_scores, atol=1e-4 * largest)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in EXPORTABLE
        if name not in SLOW_TO_DRAW | DRAWN_LIKE_CLAM_MB | EXPORTED_ELSEWHERE
    ],
)
def test_models_that_are_drawn_quickly_predict_as_torch_does(
    name: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    source = models(name, **SMALLER_STILL.get(name, {}))
    folder = export_model(source, tmp_path / "out", sizes=SIZES)
    assert [row.instances for row in read_parity(folder)] == SIZES
    same(folder, source, 1, 7, 131)


def test_the_graph_holds_no_path_of_this_machine(exported: Path) -> None:
    stored = (exported / ONNX_FILE).read_bytes()
    for path in (str(Path(sacmil.__file__).parent), "site-packages"):
        assert path.encode() not in stored


@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(EXPORTABLE, step=3))
def test_every_exportable_model_predicts_as_torch_does_on_large_slides_too(
    name: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    source = models(name)
    folder = export_model(source, tmp_path / "out", sizes=[*SIZES, *LARGE_BAG_SIZES])
    assert {row.instances for row in read_parity(folder)} == {*SIZES, *LARGE_BAG_SIZES}
    same(folder, source, 1, 7, 131)


def test_abmil_and_sac_mil_predict_as_torch_does(
    exported: Path, exported_sac_mil: Path, models: Callable[..., Path]
) -> None:
    same(exported, models("abmil"), *SIZES, 7, 131)
    same(exported_sac_mil, models("sac_mil"), *SIZES, 7, 131)


@pytest.mark.slow
def test_sac_mil_is_compared_about_its_region_and_on_large_slides(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    rows = read_parity(export_model(models("sac_mil", depth=1), tmp_path / "out"))
    assert [row.instances for row in rows] == [1, 2, 3, 4, 5, 5000, 20001]
    assert all(row.difference <= 1e-4 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    choose_cases(
        [
            ("sac_mil", {"position": "rope2d", "pool": "attention", "tail": "split"}),
            ("sac_mil", {"position": "peg", "correlation": "nystrom"}),
            ("sac_mil", {"num_classes": 1, "dim": 18}),
            ("dtfd", {"distill": "MaxMinS", "total_instances": 12, "inference_shuffles": 3}),
            ("dtfd", {"distill": "MAS", "total_instances": 12}),
            ("dtfd", {"distill": "MaxMinS", "groups": 8, "legacy_zero": True}),
            ("ibmil", {"base": "abmil"}),
            ("ibmil", {"loss": "bce", "distill": "MaxS", "legacy_ties": True}),
            ("transmil", {"legacy_slice": True}),
            ("r2t", {"crmsa_mlp": True, "all_shortcut": True, "regions": 8}),
            ("mambamil", {"kind": "bimamba"}),
            ("longnet", {"legacy_placement": True}),
            ("longnet", {"segments": [1, 2, 30], "dilations": [7, 1, 16], "states": [0, 1]}),
            ("hipt", {"depth": 2}),
            ("hipt", {"local": "attention", "depth": 2}),
            ("hipt", {"local": "none", "depth": 2}),
        ],
        step=2,
    ),
)
def test_options_are_exported_too(
    name: str, options: dict[str, Any], models: Callable[..., Path], tmp_path: Path
) -> None:
    if options.get("num_classes") == 1:
        source = tmp_path / "model"
        save_model(source, make_model(name, **options))
    else:
        source = models(name, **options)
    export_model(source, tmp_path / "out", sizes=SIZES)
    same(tmp_path / "out", source, 131)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "correlation"),
    choose_cases(
        [
            (position, correlation)
            for position in ["prope", *POSITIONS]
            for correlation in ["sac", *CORRELATION_BLOCKS]
        ],
        step=5,
    ),
)
def test_sac_mil_is_exported_with_every_position_and_correlation(
    position: str, correlation: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    source = models("sac_mil", position=position, correlation=correlation)
    export_model(source, tmp_path / "out", sizes=[*SIZES, 1000])
    same(tmp_path / "out", source, 131)


@pytest.mark.slow
def test_chordmixer_counts_its_tracks_anew_for_every_bag(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    source = models("sac_mil", correlation="chordmixer", depth=1)
    export_model(source, tmp_path / "out", sizes=[1, 2, 3, 5, 16, 17, 300])
    same(tmp_path / "out", source, 131)


@pytest.mark.slow
def test_segments_longer_than_the_bags_a_graph_is_traced_with_stay_dynamic(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    source = models("longnet", depth=1, segments=[300, 1000], dilations=[1, 3])
    export_model(source, tmp_path / "out", sizes=[1, 299, 300, 301, 999, 1000, 2500])
    same(tmp_path / "out", source, 131)


@pytest.mark.parametrize("name", sorted(set(list_models()) - set(EXPORTABLE)))
def test_what_cannot_be_exported_says_why_in_a_sentence(
    name: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=f"{name} cannot be exported: it"):
        export_model(models(name), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_card_says_what_a_user_of_the_model_needs(exported: Path) -> None:
    card = json.loads((exported / "card.json").read_text())
    assert card["classes"] == ["a", "b", "c"]
    assert card["notes"]["bags"]["mpp"] == 0.5
    assert card["export"]["planner"] == {"name": "nothing", "options": {}}
    assert card["export"]["inputs"] == ["features", "coords"]


def test_a_graph_that_differs_from_torch_is_not_written(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MAX_DIFFERENCE", -1.0)
    with pytest.raises(ModelError, match=r"differs from torch by .* nothing was written"):
        export_model(models("mean_pool"), tmp_path / "out", sizes=[3])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_not_changed(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "thesis.docx").touch()
    with pytest.raises(ModelFolderError, match="is not an exported model"):
        export_model(models("mean_pool"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.docx"]


def test_a_run_is_exported_member_by_member_and_predicts_the_mean(tmp_path: Path) -> None:
    for fold in range(2):
        torch.manual_seed(fold)
        model = get_model_class("mean_pool")(in_dim=6, num_classes=2)
        save_model(tmp_path / f"run/m/seed_0/fold_{fold}", model, classes=["a", "b"])
    runtime = load(export_model(tmp_path / "run", tmp_path / "out", sizes=[2, 70]))
    assert isinstance(runtime, Ensemble)
    assert (tmp_path / "out" / "member_1" / ONNX_FILE).is_file()
    bag = make_bag(20)
    parts = [load(tmp_path / "out" / f"member_{i}").predict(bag).probabilities for i in range(2)]
    assert abs(parts[0] - parts[1]).max() > 1e-3
    np.testing.assert_allclose(runtime.predict(bag).probabilities, np.mean(parts, axis=0))


class Planning(MILModel):
    """Makes plans that no card can describe."""

    name = "planning"

    def plan(self, coords: np.ndarray, features: np.ndarray | None = None) -> dict[str, np.ndarray]:
        return {"half": coords[:, 0] / 2}

    def aggregate(self, features: Any, coords: Any, plan: Any) -> Output:
        return Output(features.mean(0), plan["half"])


class Named(MILModel):
    """Says how its plans are made."""

    name = "named"

    @property
    def planner(self) -> Planner:
        return Planner("square")

    def aggregate(self, features: Any, coords: Any, plan: Any) -> Output:
        return Output(features.mean(0), features[:, 0])


def test_the_error_for_a_model_with_its_own_plan_names_planners() -> None:
    assert "name it as the model's planner" in explain_not_exportable(Planning(2, 2))
    assert explain_not_exportable(Named(2, 2)) == ""
