"""YAML as people write it: 1e-4 is a number, where YAML 1.1 wants 1.0e-4."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """As safe, with one more way to write a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(text: str) -> Any:
    """What the text holds; yaml.YAMLError where it is no YAML."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - it is a safe loader
