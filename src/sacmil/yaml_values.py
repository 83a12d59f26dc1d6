"""Strict YAML: 1e-4 is a number, 1:30:30 is text, and duplicate keys are errors."""

from __future__ import annotations

import re
from typing import Any

import yaml

_MAX_DEPTH = 50
"""Levels of nesting; a configuration has three."""
_MAX_VALUES = 10_000
"""Values with every alias expanded; aliases of aliases can make billions."""
_MAX_CHARACTERS = 1_000_000

_TAG_PREFIX = "tag:yaml.org,2002:"
_ALLOWED_TAGS = ("str", "int", "float", "bool", "null", "seq", "map", "merge")
"""Allowed types; no setting is a set, a date or bytes."""


class _StrictLoader(yaml.SafeLoader):
    """A safe loader of bounded size, for mappings with unique text keys."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0
        self.sizes: dict[int, int] = {}
        """Values in each finished node, by its id."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Check each node as soon as it is complete, before an object is built from it."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise _make_error(event, f"more than {_MAX_DEPTH} levels of nesting")
        node: Any = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self.sizes:
                raise _make_error(event, "an alias of a value that contains it")
        else:
            _check_tag(node)
            self.sizes[id(node)] = 1 + sum(self.sizes[id(child)] for child in _list_children(node))
        if self.sizes[id(node)] > _MAX_VALUES:
            raise _make_error(event, f"more than {_MAX_VALUES:,} values, with aliases expanded")
        return node


def _list_children(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_tag(node: Any) -> None:
    if node.tag.removeprefix(_TAG_PREFIX) not in _ALLOWED_TAGS:
        raise _make_error(node, f"the tag {node.tag!r}; expected numbers, text, lists or mappings")
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        kind = key.tag.removeprefix(_TAG_PREFIX)
        if kind == "merge":
            continue
        if kind != "str":
            shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "of several values"
            raise _make_error(
                key, f"a key {shown}, which is {kind}; expected text, put it in quotes"
            )
        if key.value in lines:
            first = lines[key.value]
            raise _make_error(key, f"the key {key.value!r} again (first in line {first}); keep one")
        lines[key.value] = key.start_mark.line + 1


def _make_error(node: Any, text: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {node.start_mark.line + 1} has {text}")


# YAML 1.1 reads 1:30:30 as 5430, 010 as 8 and 2020-01-01 as a date: all of them stay text.
_REPLACED_TAGS = tuple(_TAG_PREFIX + kind for kind in ("int", "float", "timestamp"))
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _REPLACED_TAGS]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _rule in (
    ("int", r"[-+]?(0|[1-9][0-9_]*|0b[01_]+|0x[0-9a-fA-F_]+)$"),
    ("float", r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+|[0-9][0-9_]*\.[0-9_]*)$"),
    ("float", r"[-+]?(\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"),
):
    _StrictLoader.add_implicit_resolver(
        _TAG_PREFIX + _kind, re.compile(_rule), list("-+.0123456789")
    )


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text; raise yaml.YAMLError if it is invalid or ambiguous."""
    if len(text) > _MAX_CHARACTERS:
        raise yaml.YAMLError(f"{len(text):,} characters; expected at most {_MAX_CHARACTERS:,}")
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - it is a safe loader
    except ValueError as error:  # of int() and float(): 5,000 digits, or !!int x
        raise yaml.YAMLError(f"a value that cannot be read ({error})") from error
