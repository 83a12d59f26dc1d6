"""``sacmil models``: every model with its summary, every option with its default."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sacmil import describe_model, list_models


def test_every_model_is_listed_with_its_summary(sacmil: Callable) -> None:
    done = sacmil("models")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == list_models()
    assert all(describe_model(line.split()[0]).summary in line for line in lines)


@pytest.mark.parametrize("name", list_models())
def test_a_model_is_described_with_its_options_defaults_and_their_meaning(
    sacmil: Callable, name: str
) -> None:
    done = sacmil("models", name)
    description = describe_model(name)
    assert done.code == 0
    for option, default in description.options.items():
        line = next(text for text in done.out.splitlines() if text.split()[0] == option)
        assert repr(default) in line
        assert description.help[option] in line


def test_an_unknown_model_ends_with_2_and_a_suggestion(sacmil: Callable) -> None:
    done = sacmil("models", "sacmil")
    assert done.code == 2
    assert done.err.startswith("Error: there is no model 'sacmil'; did you mean 'sac_mil'")


def test_what_a_training_loop_must_do_is_printed_where_there_is_something(
    sacmil: Callable,
) -> None:
    assert "cross-entropy on logits leaves tier1 without gradient" in sacmil("models", "dtfd").out
    assert "model.stages" in sacmil("models", "ibmil").out
    assert "training loop" not in sacmil("models", "abmil").out


def test_a_models_recipes_are_listed(sacmil) -> None:
    done = sacmil("models", "clam_sb")
    official = next(line for line in done.out.splitlines() if line.startswith("  official"))
    assert "lr=0.0002" in official
    assert "monitor=val_loss" in official
    assert "sampler=balanced" in official
    paper = next(line for line in done.out.splitlines() if line.startswith("  paper"))
    assert paper.endswith("nothing")
