"""Names of earlier versions mean what they are called now."""

from __future__ import annotations

import pytest

from sacmil import create_model, list_models
from sacmil.errors import ConfigError, OptionError
from sacmil.models._old_names import restore_old_names
from sacmil.training.config import TrainingConfig, make_configs

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
