"""YAML as people write it, and nothing that YAML could make besides."""

from __future__ import annotations

import pytest
import yaml

from sacmil.yaml_values import read_yaml


@pytest.mark.parametrize("text", ["4e0", "+4E0", "40e-1", "0.4e1", "4.e0", "4.0", "4"])
def test_a_number_is_one_however_it_is_written(text: str) -> None:
    assert read_yaml(text) == 4
    assert read_yaml(f"k: [{text}]") == {"k": [4]}


@pytest.mark.parametrize("text", ["e4", "4e", "4e1x", "1e-4 b", "'4e0'"])
def test_what_only_looks_like_a_number_is_text(text: str) -> None:
    assert read_yaml(text) == text.strip("'")


def test_nothing_is_made_of_a_tag() -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml("!!python/name:os.system ''")


def test_other_readers_of_yaml_are_left_as_they_were() -> None:
    assert yaml.safe_load("4e0") == "4e0"
