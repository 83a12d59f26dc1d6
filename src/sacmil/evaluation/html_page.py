"""Building blocks of all pages: one self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sacmil._version import __version__
from sacmil.evaluation.printable import make_printable


def render_page(title: str, body: str, *, style: str = "", banner: str = "", footer: str) -> str:
    """Return a complete HTML page.

    Args:
        title: any text.
        body: HTML with escaped text.
        style: additional CSS.
        banner: HTML above the title.
        footer: HTML after the version.
    """
    return _PAGE.format(
        title=escape_text(title),
        style=_STYLE + style,
        banner=banner,
        body=body,
        version=escape_text(__version__),
        footer=footer,
    )


def render_section(heading: str, content: str) -> str:
    """Return an HTML section with a heading, or "" if there is no content."""
    return f"<section><h2>{heading}</h2>\n{content}</section>" if content else ""


def escape_text(text: str) -> str:
    """Return text on one line, escaped so that it is neither markup nor control characters.

    >>> escape_text("<b>")
    '&lt;b&gt;'
    """
    return escape(make_printable(text))


def render_warnings(texts: Sequence[str]) -> str:
    """Return the warnings as HTML paragraphs."""
    return "".join(f'<p class="warning">{escape_text(text)}</p>' for text in texts)


_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 0 auto;
  padding: 1.25rem 1.25rem 3.5rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .75rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; padding-bottom: .2rem;
  border-bottom: 2px solid #0072b2; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .25rem 0; }
th, td { text-align: left; padding: .35rem 1.4rem .35rem 0; border-bottom: 1px solid #e4e4e4; }
th { font-weight: 600; color: #444; border-bottom-color: #999; }
.note, footer { color: #555; font-size: .875rem; }
.warning { background: #fff4e0; border-left: 4px solid #e69f00; padding: .55rem .9rem; }
figure { margin: 0; break-inside: avoid; }
img { max-width: 100%; height: auto; }
@media print { body { font-size: 10pt; max-width: none; padding: 0; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } td, th { padding-right: .8rem; } }
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style></head><body>
{banner}<h1>{title}</h1>
{body}
<footer><p>Made by sacmil {version}. {footer}</p></footer>
</body></html>
"""
