"""Official checkpoints in the shapes they are shipped in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sacmil import load_reference
from sacmil.errors import ModelError
from sacmil.models._reference import read_reference

Arrays = dict[str, np.ndarray]


def official(file: Arrays) -> Arrays:
    return {key[3:]: array for key, array in file.items() if key.startswith("sd/")}


def nested(state: Arrays, wrapper: str = "") -> dict[str, Arrays]:
    """DTFD-MIL's model.pth: a state dict for each of its four modules."""
    modules = ("classifier", "dim_reduction", "attention", "att_classifier")
    return {
        module: {
            wrapper + key.removeprefix(f"{module}."): value
            for key, value in state.items()
            if key.startswith(f"{module}.")
        }
        for module in modules
    }


def assert_same(model: torch.nn.Module, other: torch.nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("name", ["clam_sb", "clam_mb"])
def test_clam_saved_from_data_parallel_is_the_same_model(name: str, golden: Callable) -> None:
    state = official(golden(name))
    parallel = {k.replace("attention_net.", "attention_net.module."): v for k, v in state.items()}
    assert "attention_net.module.0.weight" in parallel
    assert_same(load_reference(name, parallel), load_reference(name, state))


def test_clam_without_a_gate_keeps_the_module_of_its_own() -> None:
    shapes = {"attention_net.0": (8, 5), "attention_net.3.module.0": (6, 8)}
    shapes |= {"attention_net.3.module.3": (1, 6), "classifiers": (2, 8)}
    shapes |= {f"instance_classifiers.{c}": (2, 8) for c in range(2)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    parallel = {k.replace("attention_net.", "attention_net.module."): v for k, v in state.items()}
    model = load_reference("clam_sb", parallel)
    assert model.options["gate"] is False
    assert_same(model, load_reference("clam_sb", state))


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_dtfds_four_state_dicts_are_one_model(wrapper: str, golden: Callable) -> None:
    state = official(golden("dtfd"))
    checkpoint = {**nested(state, wrapper), "epoch": 7, "history": [0.5, 0.75]}
    assert_same(load_reference("dtfd", checkpoint), load_reference("dtfd", state))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {"state_dict": state}, "optimizer": {"param_groups": []}},
        lambda state: {"model_state_dict": state, "model": "DSMIL"},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {f"model._orig_mod.{key}": value for key, value in state.items()},
    ],
)
def test_what_training_scripts_put_around_parameters_is_removed(
    wrap: Callable[[Arrays], Any], golden: Callable
) -> None:
    state = official(golden("dsmil_c2"))
    assert_same(load_reference("dsmil", wrap(state)), load_reference("dsmil", state))


def test_an_optimizer_beside_the_state_dicts_is_no_parameter(golden: Callable) -> None:
    state = official(golden("dtfd"))
    adam = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-4}]}
    checkpoint = {**nested(state), "optimizer": adam}
    assert_same(load_reference("dtfd", checkpoint), load_reference("dtfd", state))


def test_one_parameter_under_two_names_is_rejected(golden: Callable) -> None:
    state = official(golden("dsmil_c2"))
    twice = state | {"i_classifier.module.fc.0.bias": state["i_classifier.fc.0.bias"]}
    with pytest.raises(ModelError, match=r"both i_classifier\.fc\.0\.bias and i_cl.*module"):
        load_reference("dsmil", twice)


# --- the official loss ---------------------------------------------------------------------------


def test_dsmil_gives_the_official_sigmoids_divided_by_their_sum(golden: Callable) -> None:
    file = golden("dsmil_c2")
    model = load_reference("dsmil", official(file))
    x = torch.from_numpy(file["x"])
    found = model.probabilities(model(x, torch.zeros(len(x), 2))).detach()
    sigmoids = file["out/prob_bag"].flatten()
    np.testing.assert_allclose(found, sigmoids / sigmoids.sum(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dsmil_c2", "ibmil_dtfd_full", "ibmil_abmil_cat"])
def test_a_checkpoint_of_binary_losses_keeps_them_and_says_so(name: str, golden: Callable) -> None:
    loaded = read_reference(name.split("_")[0], official(golden(name)), {})
    assert loaded.assumed["loss"] == "bce"
    assert "sigmoid per class" in loaded.notes[0]


def test_a_single_output_needs_no_note(golden: Callable) -> None:
    assert read_reference("dsmil", official(golden("dsmil_c1")), {}).notes == ()


def test_options_are_read_given_or_assumed_and_never_two_of_these(golden: Callable) -> None:
    loaded = read_reference("clam_sb", official(golden("clam_sb")), {"k_sample": 4})
    assert {"in_dim", "num_classes", "gate"} <= set(loaded.from_checkpoint)
    assert loaded.from_caller == {"k_sample": 4}
    assert {"dropout", "instance_loss"} <= set(loaded.assumed)
    assert loaded.from_checkpoint | loaded.from_caller | loaded.assumed == loaded.model.options
    assert len(loaded.from_checkpoint) + 1 + len(loaded.assumed) == len(loaded.model.options)


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clam_mb", "dtfd", "dsmil_c2"])
def test_a_missing_parameter_is_named_as_in_the_file(name: str, golden: Callable) -> None:
    state = official(golden(name))
    for missing in state:
        if missing.startswith("instance_loss_fn"):  # which carries nothing
            continue
        rest = {key: value for key, value in state.items() if key != missing}
        with pytest.raises(ModelError) as caught:
            load_reference(name.split("_c2")[0], rest)
        stem = missing.rsplit(".", 1)[0]
        assert stem in str(caught.value) or stem.rstrip(".012") in str(caught.value)


@pytest.mark.parametrize("wrong", [np.zeros(()), np.zeros((2, 2, 2, 2))])
@pytest.mark.parametrize("name", ["clam_sb", "dtfd"])
def test_a_weight_of_another_shape_is_a_sentence(
    name: str, wrong: np.ndarray, golden: Callable
) -> None:
    state = official(golden(name))
    for key in (key for key in state if key.endswith("weight")):
        with pytest.raises(ModelError, match=f"not an official {name}"):
            load_reference(name, state | {key: wrong})


def test_a_wrong_size_is_reported_under_the_name_in_the_file(golden: Callable) -> None:
    state = official(golden("clam_sb"))
    parallel = {k.replace("attention_net.", "attention_net.module."): v for k, v in state.items()}
    parallel["attention_net.module.0.bias"] = np.zeros(3)
    with pytest.raises(ModelError, match=r"attention_net\.module\.0\.bias is \(3,\), expected"):
        load_reference("clam_sb", parallel)


def test_the_error_for_another_models_checkpoint_names_that_model(golden: Callable) -> None:
    with pytest.raises(ModelError, match=r"attention_net\.0.* it fits dsmil: name that model"):
        load_reference("clam_sb", official(golden("dsmil_c2")))


@pytest.mark.parametrize("nothing", [{}, {"epoch": 3}, {"state_dict": {}}, [1], None])
def test_what_holds_no_parameters_is_rejected(nothing: Any) -> None:
    with pytest.raises(ModelError, match="no parameters; expected parameters by name"):
        load_reference("dtfd", nothing)


def test_a_checkpoint_of_numbers_that_are_not_finite_is_rejected(golden: Callable) -> None:
    state = official(golden("clam_sb"))
    name = next(iter(state))
    with pytest.raises(ModelError, match=f"{name} holds values that are not finite"):
        load_reference("clam_sb", state | {name: np.full_like(state[name], np.nan)})


@pytest.mark.parametrize(
    "odd", [torch.zeros(1).expand(10**6, 10**6), torch.eye(2).to_sparse()], ids=["huge", "sparse"]
)
def test_a_tensor_of_an_odd_kind_is_a_sentence(odd: torch.Tensor, golden: Callable) -> None:
    state = official(golden("clam_sb"))
    for name in ("classifiers.bias", "classifiers.weight"):
        with pytest.raises(ModelError, match=f"{name} is sparse, or declares more numbers"):
            load_reference("clam_sb", state | {name: odd})


def test_options_that_contradict_the_file_are_named_in_the_error(golden: Callable) -> None:
    with pytest.raises(ModelError, match="it fits clam_sb with the options that the file implies"):
        load_reference("clam_sb", official(golden("clam_sb")), num_classes=5)
