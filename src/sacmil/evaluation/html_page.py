"""Pages from the templates next to this file: each is one self-contained HTML file.

All text is escaped and free of control characters. No page has scripts or fetches anything.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil._version import __version__
from sacmil.errors import require_extra
from sacmil.evaluation.table_format import make_printable

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, **values: object) -> str:
    """Return a page as text.

    Args:
        template: file name of the template.
        values: what the template shows, by name; any text is safe.
    """
    return _make_environment().get_template(template).render(values)


@cache
def _make_environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["version"] = __version__
    environment.filters["svg_uri"] = lambda svg: _make_uri("image/svg+xml", svg)
    environment.filters["jpeg_uri"] = lambda path, width: _make_uri(
        "image/jpeg", _encode_jpeg(path, width)
    )
    return environment


def _clean_text(value: object) -> object:
    """Return text without control characters; HTML is unchanged."""
    return value if hasattr(value, "__html__") else make_printable(str(value))


def _make_uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _encode_jpeg(path: Path, width: int) -> bytes:
    """Return an image as JPEG, a tenth of the PNG's size, no wider than the page shows."""
    with require_extra("slides", "a page with pictures"):
        from PIL import Image
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.thumbnail((width, 2 * width))
        image.convert("RGB").save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()
