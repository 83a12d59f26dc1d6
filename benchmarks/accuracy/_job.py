"""A job: one model trained once, said in JSON; its key tells whether it has been done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Role = Literal["tune", "run"]
Source = Mapping[str, Any]
"""Which bags, in JSON: see ``_bags.py``."""
Split = Mapping[str, Any]
"""Which of them train, choose and test: see ``_parts.py``."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that decides one line of results."""

    study: str
    task: str
    """What the line is called in tables: margin, colon, …"""
    variant: str
    """What it is called beside others: usually the model."""
    model: str
    source: Source
    split: Split = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the model's constructor."""
    arrangement: str = ""
    """raster or random, in place of the model's own order of instances."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe."""
    seed: int = 0
    """Of first weights and of the order of bags."""
    role: Role = "run"
    """A job that tunes looks at the validation part alone."""

    @property
    def key(self) -> str:
        """A name made of everything above."""
        return digest(asdict(self))

    @property
    def fold(self) -> int:
        """A number for each test part of the task: cross-validation counts on over repeats."""
        if "fold" in self.split:
            return int(self.split["repeat"]) * 100 + int(self.split["fold"])
        return int(self.source.get("seed", 0))


def digest(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of a value in JSON."""
    return hashlib.sha256(to_json(value).encode()).hexdigest()[:16]


def to_json(value: Any) -> str:
    """The same value always gives the same text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
