"""A slide's or a class's name as part of a file name: it never leads out of its folder."""

from __future__ import annotations

import hashlib
import re

_UNSAFE_CHARACTERS = re.compile(r"[^\w .,()+=@-]")
_MAX_BYTES = 100  # bytes; names may hold 255, and something is added to them


def safe_file_name(text: str) -> str:
    """The text itself where that is harmless, else a likeness with a hash, so that no two meet.

    >>> safe_file_name("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF")
    'TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF'
    >>> safe_file_name("../x")
    'x-d6b96a97'
    """
    likeness = _UNSAFE_CHARACTERS.sub("_", text).strip(" ._")
    likeness = likeness.encode()[:_MAX_BYTES].decode(errors="ignore")
    if likeness == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{likeness}-{digest}" if likeness else digest
