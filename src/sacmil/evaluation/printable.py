"""Names from other people's files, made safe for terminals, tables and pages."""

from __future__ import annotations


def make_printable(text: str) -> str:
    """Return text on one line without control characters.

    >>> make_printable("a\\x1b[31mb")
    'a�[31mb'
    """
    return "".join(character if character.isprintable() else "�" for character in text)
