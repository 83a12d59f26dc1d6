"""Names that come from files of others, made harmless for terminals, tables and pages."""

from __future__ import annotations


def make_printable(text: str) -> str:
    """Text on one line that cannot steer a terminal.

    >>> make_printable("a\\x1b[31mb")
    'a�[31mb'
    """
    return "".join(character if character.isprintable() else "�" for character in text)
