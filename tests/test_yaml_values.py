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


@pytest.mark.parametrize("text", ["1:30:30", "1:30.5", "010", "2020-01-01", "2020-01-01 10:00:00"])
def test_times_dates_and_octal_numbers_stay_the_text_that_was_written(text: str) -> None:
    assert read_yaml(f"k: {text}") == {"k": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [("-1", -1), ("0", 0), ("1_000", 1000), ("0x10", 16), (".5", 0.5), ("-.inf", float("-inf"))],
)
def test_other_numbers_are_read_as_before(text: str, value: float) -> None:
    assert read_yaml(text) == value


def test_merged_mappings_may_be_changed() -> None:
    text = "a: &a {k: 1, l: 2}\nb: &b\n  <<: *a\n  k: 3\nc: {<<: *b, l: 4}"
    assert read_yaml(text)["c"] == {"k": 3, "l": 4}


BILLION = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lr: 1\nseed: 2\nlr: 3", "line 3 has the key 'lr' again (first in line 1)"),
        ("a:\n  b: 1\n  b: 1", "line 3 has the key 'b' again"),
        ("1: x", "line 1 has a key '1', which is int"),
        ("a: 1\nnull: x", "line 2 has a key 'null', which is null"),
        ("on: x", "a key 'on', which is bool"),
        ("? [a]\n: x", "a key of several values"),
        (BILLION, "more than 10,000 values"),
        ("a: &a [*a]", "an alias of a value that contains it"),
        ("a: " + "[" * 60 + "]" * 60, "more than 50 levels"),
        ("9" * 5000, "cannot be read"),
        ("!!int x", "cannot be read"),
        ("!!set {a, b}", "the tag 'tag:yaml.org,2002:set'"),
        ("a: " + "x" * 1_000_001, "expected at most 1,000,000"),
    ],
)
def test_yaml_without_one_plain_meaning_is_rejected_with_the_line(text: str, reason: str) -> None:
    with pytest.raises(yaml.YAMLError) as raised:
        read_yaml(text)
    assert reason in str(raised.value)
