"""Models by name, those of earlier versions too; what their constructors refuse."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

from sacmil import create_model, describe_model, list_models
from sacmil.errors import ConfigError, ModelError, OptionError, UnknownModelError
from sacmil.models import MILModel, register_model
from sacmil.models._registry import get_model_class, restore_old_names
from sacmil.training.config import TrainingConfig, make_configs

every_model = pytest.mark.parametrize("name", list_models())


@pytest.mark.parametrize(
    ("name", "message"),
    [("sacmil", "did you mean 'sac_mil'"), ("zebra", "known are: "), ("", "known are: ")],
)
def test_an_unknown_model_is_rejected_with_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(UnknownModelError, match=message) as raised:
        create_model(name, in_dim=4, num_classes=2)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimm": 8}, r"no option 'dimm'; did you mean 'dim'"),
        ({"Pool": "mean"}, r"no option 'Pool'; did you mean 'pool'"),
        ({"zebra": 1}, r"no option 'zebra'; known are: activation, .*tail"),
        ({"pool": "maen"}, r"pool='maen' is not known; did you mean 'mean'"),
        ({"position": None}, r"position=None is not known; did you mean 'none'|known are"),
        ({"depth": -1}, r"depth=-1; expected a whole number of at least 0"),
        ({"k": 1}, r"k=1; expected a whole number of at least 2"),
        ({"k": 4.0}, r"k=4.0; expected a whole number"),
        ({"dim": True}, r"dim=True; expected a whole number"),
        ({"dim": 10**12}, r"dim=1000000000000; expected at most 1,000,000"),
        ({"depth": 10**6}, r"depth=1000000; expected at most 1,000"),
        ({"dim": 7, "k": 2}, r"dim=7; prope rotates pairs of channels, expected an even dim"),
        ({"dim": 8}, r"k=64, dim=8; a fold needs a channel"),
    ],
)
def test_a_wrong_option_is_rejected_with_what_was_expected(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        create_model("sac_mil", in_dim=4, num_classes=2, **options)


@every_model
def test_a_model_is_final_and_what_it_inherits_from_is_abstract(name: str) -> None:
    model, *bases = get_model_class(name).__mro__
    above = bases[: bases.index(MILModel)]
    assert all(inspect.isabstract(base) and "name" not in vars(base) for base in above)
    assert not model.__subclasses__()


@every_model
@pytest.mark.parametrize("size", ["in_dim", "num_classes"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None])
def test_sizes_that_are_not_whole_and_positive_are_refused(
    name: str, size: str, value: Any
) -> None:
    with pytest.raises(OptionError, match=f"{size}={value!r}"):
        create_model(name, **({"in_dim": 4, "num_classes": 2} | {size: value}))


@every_model
def test_every_option_is_an_explicit_keyword_with_a_default_and_a_line_of_help(name: str) -> None:
    parameters = inspect.signature(get_model_class(name)).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    description = describe_model(name)
    assert description.summary
    assert inspect.Parameter.empty not in description.options.values()
    assert set(description.help) == set(description.options)


@every_model
def test_a_model_records_all_its_options_with_the_defaults(name: str) -> None:
    model = create_model(name, in_dim=4, num_classes=2)
    assert model.options == {"in_dim": 4, "num_classes": 2} | describe_model(name).options
    assert model.name == name


def test_a_name_can_be_taken_once_only() -> None:
    with pytest.raises(ModelError, match="two models are called 'sac_mil'"):
        register_model("sac_mil")(get_model_class("sac_mil"))


def test_models_are_listed_in_order_and_once() -> None:
    assert list_models() == sorted(set(list_models()))
    assert "sac_mil" in list_models()


def test_numbers_of_numpy_are_as_good_as_pythons() -> None:
    model = create_model("sac_mil", in_dim=np.int64(8), num_classes=np.int32(2), k=np.int64(4))
    assert model.options == create_model("sac_mil", in_dim=8, num_classes=2, k=4).options
    json.dumps(model.options)


SIZES = {"in_dim": 8, "num_classes": 2, "dim": 16, "k": 4}


def test_a_model_and_an_option_have_their_old_names_too() -> None:
    old = create_model("sac_mil_twice", **SIZES, centres="kd")
    new = create_model("sac_mil_dual", **SIZES, centers="kd")
    assert type(old) is type(new)
    assert old.options == new.options
    assert "sac_mil_twice" not in list_models()


def test_an_option_under_both_names_is_rejected() -> None:
    with pytest.raises(OptionError, match="centres is the old name of centers"):
        create_model("sac_mil", **SIZES, centres="kd", centers="fps")


def test_old_settings_make_the_same_configuration() -> None:
    (old,) = make_configs(["sac_mil"], {}, ["optimiser=adamw", "centres=kd"]).values()
    (new,) = make_configs(["sac_mil"], {}, ["optimizer=adamw", "centers=kd"]).values()
    assert old == new
    assert old.to_recipe().optimizer == "adamw"
    with pytest.raises(ConfigError, match="optimizer"):
        make_configs(["sac_mil"], {}, ["optimizor=adamw"])


def test_fingerprints_are_computed_with_the_old_names() -> None:
    config = TrainingConfig(
        model="sac_mil_dual", options={"centers": "kd"}, training={"optimizer": "radam"}
    )
    stored = restore_old_names(config.to_dict())
    assert stored["model"] == "sac_mil_twice"
    assert stored["options"] == {"centres": "kd"}
    assert stored["training"] == {"optimiser": "radam"}
