"""The configuration: what it accepts, what it rejects, and that it describes a whole run."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from sacmil import Bag, write_bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.errors import ConfigError, OptionError, RunError, SacMILError, UnknownModelError
from sacmil.models import Recipe, create_model, describe_model, list_models
from sacmil.models._recipe import Lookahead
from sacmil.models._registry import get_recipes
from sacmil.training import job
from sacmil.training.config import (
    TrainingConfig,
    make_config,
    make_configs,
    read_config,
    resolve_configs,
)
from sacmil.training.run_folder import open_run, write_configs


def test_a_file_and_the_command_line_make_one_configuration() -> None:
    config = make_config(
        {"model": "sac_mil", "options": {"k": 16}, "training": {"lr": 1e-3, "epochs": 7}},
        ["epochs=9", "options.depth=2", "position=rope", "betas=[0.5, 0.9]", "seed=3"],
    )
    assert config.model_options() == {"k": 16, "depth": 2, "position": "rope"}
    recipe = config.to_recipe()
    assert (recipe.lr, recipe.epochs, recipe.betas) == (1e-3, 9, (0.5, 0.9))
    assert config.seed == 3


def test_what_is_written_down_makes_the_same_configuration_again(tmp_path) -> None:
    config = make_config({"model": "transmil", "recipe": "official"}, ["lr=3e-4", "heads=4"])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    assert make_config(read_config(tmp_path / "config.yaml")) == config


def test_numbers_yaml_takes_for_text_are_numbers() -> None:
    assert make_config({"training": {"lr": "1e-4"}}).to_recipe().lr == 1e-4
    assert make_config({}, ["lr=2e-4"]).to_recipe().lr == 2e-4


def test_options_of_models_take_numbers_as_people_write_them() -> None:
    assert make_config({}, ["near_strength=2e-1"]).options["near_strength"] == 0.2
    assert make_config({"model": "sac_mil_local"}, ["start=2e0"]).options["start"] == 2


def test_slow_weights_can_be_set_and_left_out() -> None:
    config = make_config({"model": "transmil", "recipe": "official"}, ["lookahead={steps: 3}"])
    assert config.to_recipe().lookahead == Lookahead(steps=3)
    without = make_config({"model": "transmil", "recipe": "official"}, ["lookahead=null"])
    assert without.to_recipe().lookahead is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochz=3", "did you mean 'epochs'"),
        ("epochs=3.5", "expected a whole number"),
        ("epochs=0", "expected a whole number from 1 to 1,000,000"),
        ("epochs=99999999999999999999999999", "expected a whole number from 1 to 1,000,000"),
        ("lr_min=1e400", "lr_min=inf; expected a number from 0 to 1,000,000"),
        ("weight_decay=.inf", "weight_decay=inf; expected a number"),
        ("lr=true", "expected a number"),
        ("lr=.nan", "expected a number"),
        ("lr=[1]", "expected a number"),
        ("sampler=x", "balanced, shuffle"),
        ("training.k=3", "no setting of training 'k'"),
        ("options.lr=3", "no option of sac_mil_near_far 'lr'"),
        ("model=sacmil", "did you mean 'sac_mil'"),
        ("recipe=offical", "did you mean 'official'"),
        ("seed=x", "expected a whole number"),
        ("precision=fp16", "bfloat16, float32"),
        ("patience=4", "monitor=val_loss"),
        ("instance_dropout=1", "from 0 to 0.99"),
        ("betas=3", "a list of 2 numbers"),
        ("betas=[2, 3]", "from 0 to below 1"),
        ("lookahead=3", "steps, alpha"),
        ("k", "expected key=value"),
        ("k=[", "is not YAML"),
        ("model=[abmil]", "model=['abmil']; expected text"),
        ("recipe={a: 1}", "recipe={'a': 1}; expected text"),
        ("seed=1:30:30", "seed='1:30:30'; expected a whole number"),
        ("lr=" + "9" * 5000, "is not YAML"),
    ],
)
def test_a_wrong_setting_is_rejected_with_what_it_might_have_meant(override, message) -> None:
    with pytest.raises(SacMILError) as caught:
        make_config({}, [override])
    assert message in str(caught.value)


def test_a_file_that_is_no_configuration_is_rejected(tmp_path) -> None:
    for content, message in [
        ("- a\n- b", "expected keys and values"),
        ("{", "is not YAML"),
        ("modl: abmil", "did you mean 'model'"),
        ("options: 3", "expected keys and values under it"),
        ("1: abmil", "line 1 has a key '1'"),
        ("null: abmil", "a key 'null'"),
        ("model: [abmil]", "expected text"),
        ("seed: 1\nseed: 2", "line 2 has the key 'seed' again"),
        ("options: {k: " + "[" * 60 + "]" * 60 + "}", "levels of nesting"),
    ]:
        (tmp_path / "c.yaml").write_text(content)
        with pytest.raises((ConfigError, UnknownModelError), match=message):
            make_config(read_config(tmp_path / "c.yaml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "absent.yaml")


def test_one_override_reaches_the_models_that_have_it() -> None:
    configs = make_configs(["sac_mil", "abmil"], {}, ["k=16", "lr=1e-3", "abmil.hidden=64"])
    assert configs["sac_mil"].options == {"k": 16}
    assert configs["abmil"].options == {"hidden": 64}
    assert {config.to_recipe().lr for config in configs.values()} == {1e-3}
    with pytest.raises(ConfigError, match="no setting 'kk'"):
        make_configs(["sac_mil", "abmil"], {}, ["kk=16"])


def test_the_configuration_of_a_run_has_one_for_each_model() -> None:
    configs = make_configs(["sac_mil", "abmil"], {"recipe": "official"}, ["seed=4"])
    written = {name: config.to_dict() for name, config in configs.items()}
    assert make_configs(["abmil", "sac_mil"], written) == configs
    with pytest.raises(ConfigError, match="no model in the configuration 'dsmil'"):
        make_configs(["dsmil"], written)


def test_models_are_given_by_name_by_configuration_or_by_file(tmp_path) -> None:
    config = TrainingConfig(model="abmil", training={"lr": 1e-3})
    assert resolve_configs({"mine": config}) == {"mine": config}
    assert resolve_configs({"abmil": {"training": {"lr": 1e-3}}}) == {"abmil": config}
    assert resolve_configs("abmil", options={"lr": 1e-3}) == {"abmil": config}
    file = tmp_path / "config.yaml"
    write_configs(tmp_path, {"mine": config, "dsmil": TrainingConfig(model="dsmil")})
    assert resolve_configs(["dsmil"], config=file, options=["lr=1"])["dsmil"].to_recipe().lr == 1
    assert list(resolve_configs(None)) == ["sac_mil_near_far"]
    changed = resolve_configs({"mine": config}, recipe="official", options={"mine.hidden": 8})
    assert (changed["mine"].recipe, changed["mine"].options) == ("official", {"hidden": 8})


def test_a_recipe_is_for_every_model_of_a_runs_configuration() -> None:
    found = resolve_configs(None, config={"abmil": {}, "dsmil": {}}, recipe="official")
    assert [config.recipe for config in found.values()] == ["official", "official"]


def test_models_are_not_given_twice() -> None:
    with pytest.raises(ConfigError, match="`models` and `config` are both configurations"):
        resolve_configs({"abmil": {}}, config={"model": "abmil"})
    with pytest.raises(ConfigError, match="models are named by `model`"):
        resolve_configs("abmil", options={"model": "dsmil"}, argument="model")


@pytest.mark.parametrize("name", list_models())
def test_no_option_of_a_model_is_called_like_a_setting(name: str) -> None:
    """Otherwise a bare ``key=value`` would mean two things."""
    settings = {*Recipe.model_fields, *TrainingConfig.model_fields}
    assert not settings & set(describe_model(name).options)


@pytest.mark.parametrize("name", list_models())
def test_every_recipe_of_every_model_is_a_configuration(name: str) -> None:
    for recipe in get_recipes(name):
        assert TrainingConfig(model=name, recipe=recipe).to_recipe().epochs > 0


def test_defaults_are_what_the_studies_found() -> None:
    nothing = make_config({})
    assert (nothing.model, nothing.recipe) == ("sac_mil_near_far", "standard")
    assert nothing.to_recipe().monitor == "last", "no slide is kept from training by default"
    for name in list_models():  # which are compared under one recipe, unless another is given
        assert make_config({"model": name}).to_recipe() == nothing.to_recipe()


def test_few_bags_get_more_epochs_unless_epochs_are_given() -> None:
    standard = make_config({}).to_recipe()
    epochs = {bags: standard.adapt_to_bags(bags).epochs for bags in (3, 40, 100, 900)}
    assert epochs == {3: 667, 40: 50, 100: 20, 900: 20}
    four = make_config({}, ["accumulate=4"]).to_recipe()
    assert four.adapt_to_bags(401).epochs == 20
    assert four.adapt_to_bags(397).epochs == 20
    assert four.adapt_to_bags(396).epochs == 21
    assert make_config({}, ["epochs=2"]).to_recipe().adapt_to_bags(3).epochs == 2
    both = make_config({}, ["epochs=2", "min_steps=30"]).to_recipe()
    assert both.adapt_to_bags(3).epochs == 10


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config({}, [f"lr=[{', '.join('1' * 300)}]"])
    assert len(str(caught.value)) < 200


def test_a_model_of_too_many_weights_is_rejected_before_it_is_made(tmp_path, monkeypatch) -> None:
    def create(name, /, **options):
        return create_model(name, **options)  # the first on "meta" takes seconds

    monkeypatch.setattr(job, "create_meta_model", create)
    monkeypatch.setattr(job, "_MAX_PARAMETERS", 100)
    write_bag(tmp_path / "a.h5", Bag("a", np.zeros((2, 8), np.float32), np.eye(2), 1))
    config = make_config({"model": "abmil", "options": {"hidden": 12}})
    cohort = Cohort((LabeledSlide("a", "a", 0),), ("x", "y"))
    with pytest.raises(OptionError, match="parameters; expected at most 100"):
        job.check_models([config], Dataset(cohort, {"a": tmp_path / "a.h5"}))


@pytest.mark.parametrize("damage", ["{", "a: 1\na: 2", "- x", "\0"])
def test_a_damaged_configuration_in_a_run_is_reported_as_such(tmp_path, damage: str) -> None:
    (tmp_path / "config.yaml").write_text(damage)
    with pytest.raises(RunError, match=r"config.yaml.*restore it, or move it away"):
        write_configs(tmp_path, {"abmil": make_config({"model": "abmil"})})


@pytest.mark.parametrize("damage", ["{", "[]", '{"seeds": 3}', '{"seeds": [[1]]}', "[" * 100_000])
def test_a_damaged_provenance_in_a_run_is_reported_as_such(tmp_path, damage: str) -> None:
    (tmp_path / "provenance.json").write_text(damage)
    with (
        pytest.raises(RunError, match=r"provenance.json.*choose another `out`"),
        open_run(tmp_path, Cohort((), ("a", "b")), [], "train"),
    ):
        pass
