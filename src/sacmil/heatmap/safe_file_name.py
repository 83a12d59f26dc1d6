"""Makes names of slides and classes safe in file names: they never leave their folder."""

from __future__ import annotations

import hashlib
import re

_UNSAFE_CHARACTERS = re.compile(r"[^\w .,()+=@-]")
_MAX_BYTES = 100  # bytes; names may have 255, and more is added to them


def safe_file_name(text: str) -> str:
    """Return the text if it is safe, otherwise a similar one with a hash that keeps it unique.

    >>> safe_file_name("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF")
    'TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF'
    >>> safe_file_name("../x")
    'x-d6b96a97'
    """
    safe = _UNSAFE_CHARACTERS.sub("_", text).strip(" ._")
    safe = safe.encode()[:_MAX_BYTES].decode(errors="ignore")
    if safe == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe}-{digest}" if safe else digest
