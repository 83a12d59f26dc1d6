"""The demonstration's page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import whole_file
from sacmil.cohorts.drawn import CLASSES, DrawnSlide
from sacmil.evaluation.claims import claims
from sacmil.evaluation.html_page import html_page, safe, section
from sacmil.evaluation.layouts import Table
from sacmil.evaluation.tables import summary_table
from sacmil.workflows.demo.settings import ANSWERING

if TYPE_CHECKING:
    from sacmil.workflows.demo.run import Demonstration

_WIDE = 1100
"""Pixels a picture on the page has across, at most."""
_STYLE = """
td, th { white-space: nowrap; }
.strip { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; }
.strip figcaption { font-size: .85rem; color: #444; }
figure { margin: .75rem 0; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; }
"""


def write_page(found: Demonstration) -> None:
    """Write index.html, whole or not at all."""
    parts = [
        section("What was done", _story(found)),
        section("The slides", _strip(found)),
        section("What the models are worth", _worth(found)),
        section("Where a model looks", _looks(found)),
        section("What could not be used", _failures(found)),
        section("New slides, through the exported model", _new(found)),
        section("Next", f"<pre>{safe_lines(next_commands(found.folder.out))}</pre>"),
    ]
    footer = "For research use; not a medical device."
    page = html_page("Where, not how many", "\n".join(parts), style=_STYLE, footer=footer)
    with whole_file(found.folder.page) as partial:
        partial.write_text(page, encoding="utf-8")


def next_commands(out: Path) -> list[str]:
    """What to type now."""
    return [
        f"sacmil view {out / 'results'}",
        f"sacmil evaluate {out / 'run'}",
        f"sacmil compare {out / 'run'}",
        f"sacmil predict SLIDES --model {out / 'onnx' / ANSWERING[0]} --out answers --report",
    ]


def safe_lines(lines: Iterable[str]) -> str:
    """Lines of text as HTML."""
    return "\n".join(map(safe, lines))


def _story(found: Demonstration) -> str:
    used, every = len(found.bags.files), len(found.drawn)
    return (
        f"<p>{every} slides were drawn that look like H&amp;E, with the outlines of their tumour "
        f"nests. In half of them the nests stand together ({safe(CLASSES[0])}), in the others they "
        f"are dispersed ({safe(CLASSES[1])}), and that is the label. Nests, tumour cells, glands, "
        "fat and stroma are the same in number and size, and each nest lies within one tile, so "
        "that no tile by itself betrays the label: only where tiles are does.</p>"
        f"<p>{used} slides became bags of {found.bags.tiles:,} tiles in all, encoded offline. Four "
        "models were cross-validated on the same folds, two of them exported to ONNX, and every "
        "slide was answered by the exported part that had not been trained on it.</p>"
        '<p class="note">Drawn slides and one seed: a demonstration, not a benchmark.</p>'
    )


def _strip(found: Demonstration) -> str:
    folder = found.folder.results / "thumbnails"
    figures = [
        _figure(folder / f"{slide.slide_id}.jpg", f"{slide.slide_id}: {CLASSES[slide.label]}")
        for slide in found.pictured
    ]
    return f'<div class="strip">{"".join(figures)}</div>'


def _worth(found: Demonstration) -> str:
    report = found.report
    table = summary_table(report.figures, caption=report.caption(), style=report.style)
    told = claims(report.comparisons, level=report.level, style=report.style)
    listed = "".join(f"<li>{safe(sentence)}</li>" for sentence in told)
    source = base64.b64encode(report.drawings["roc"]).decode()
    roc = f'<img alt="ROC curves" src="data:image/svg+xml;base64,{source}">'
    return f"{_table(table)}<ul>{listed}</ul><figure>{roc}</figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{safe(text)}</th>" for text in table.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{safe(cell.text)}</td>' for cell in row)}</tr>\n" for row in table.rows
    )
    return f'<table><tr>{head}</tr>\n{rows}</table><p class="note">{safe(table.caption)}</p>'


def _looks(found: Demonstration) -> str:
    told = "".join(
        f"<li>{safe(name)}: AUC {place.auc:.3f} of a tile's score for whether a nest lies in it, "
        f"mean over {place.slides} slides; chance is 0.5</li>"
        for name, place in found.located.items()
    )
    first = [_first(found.pictured, label) for label in range(len(CLASSES))]
    pictures = "".join(
        _figure(
            found.folder.results / "heatmaps" / model / f"{slide.slide_id}_overlay.png",
            f"{model} on {slide.slide_id}, with the nests as they were drawn",
        )
        for model in ANSWERING
        for slide in first
        if slide is not None
    )
    return f"<ul>{told}</ul>{pictures}"


def _first(slides: Sequence[DrawnSlide], label: int) -> DrawnSlide | None:
    return next((slide for slide in slides if slide.label == label), None)


def _failures(found: Demonstration) -> str:
    told = "".join(
        f"<li>{safe(name)}: {safe(reason)}</li>" for name, reason in found.bags.failures.items()
    )
    marked = ", ".join(slide.slide_id for slide in found.drawn if slide.mishap == "pen mark")
    return (
        f"<p>As meant: one slide has no tissue, one file is cut off.</p><ul>{told}</ul>"
        f"<p>There is a pen mark on {safe(marked)}: <code>cohort/tissue/{safe(marked)}.png</code> "
        "shows what of it was taken for tissue.</p>"
    )


def _new(found: Demonstration) -> str:
    told = "".join(f"<li>{safe(name)}: {safe(said)}</li>" for name, said in found.new.items())
    return (
        f"<ul>{told}</ul><p>A page for each is in <code>new/answers/reports</code>. They were "
        "answered by <code>sacmil predict</code> with the exported parts of SAC-MIL, which need "
        "no torch.</p>"
    )


def _figure(picture: Path, caption: str) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(picture) as opened:
        opened.thumbnail((_WIDE, 10 * _WIDE))
        opened.convert("RGB").save(buffer, format="JPEG", quality=85)
    source = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{safe(caption)}" src="data:image/jpeg;base64,{source}">'
        f"<figcaption>{safe(caption)}</figcaption></figure>"
    )
