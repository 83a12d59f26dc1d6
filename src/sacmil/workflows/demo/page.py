"""The demonstration's report: one self-contained HTML file."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from sacmil.atomic import atomic_write
from sacmil.evaluation.conclusions import list_conclusions
from sacmil.evaluation.html_page import escape_text, render_page, render_section
from sacmil.evaluation.table_format import ResultTable
from sacmil.evaluation.tables import summary_table
from sacmil.synthetic.slides import CLASSES, SyntheticSlide
from sacmil.workflows.demo.result import DemoResult
from sacmil.workflows.demo.settings import EXPORTED_MODELS

_MAX_IMAGE_PX = 1100
"""Maximum width of an image in pixels."""
_STYLE = """
td, th { white-space: nowrap; }
.strip { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; }
.strip figcaption { font-size: .85rem; color: #444; }
figure { margin: .75rem 0; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; }
"""


def write_page(result: DemoResult) -> None:
    """Write index.html atomically."""
    sections = [
        render_section("Overview", _render_introduction(result)),
        render_section("Slides", _render_thumbnails(result)),
        render_section("Metrics of the models", _render_comparison(result)),
        render_section("Heatmaps", _render_heatmaps(result)),
        render_section("Slides that failed", _render_failures(result)),
        render_section("New slides, predicted by the exported model", _render_new_slides(result)),
        render_section("Next commands", _render_next_commands(result.folder.out)),
    ]
    footer = "For research use; not a medical device."
    page = render_page("Where, not how many", "\n".join(sections), style=_STYLE, footer=footer)
    with atomic_write(result.folder.page) as partial:
        partial.write_text(page, encoding="utf-8")


def list_next_commands(out: Path) -> list[str]:
    """Return commands to run next."""
    return [
        f"sacmil view {out / 'results'}",
        f"sacmil evaluate {out / 'run'}",
        f"sacmil compare {out / 'run'}",
    ]


def _render_next_commands(out: Path) -> str:
    model = escape_text(str(out / "onnx" / EXPORTED_MODELS[0]))
    commands = escape_lines(list_next_commands(out))
    return f"<pre>{commands}</pre><p>Predict your own slides by sacmil predict with {model}.</p>"


def escape_lines(lines: Iterable[str]) -> str:
    """Return lines of text as HTML."""
    return "\n".join(map(escape_text, lines))


def _render_introduction(result: DemoResult) -> str:
    used, every = len(result.bags.files), len(result.slides)
    return (
        f"<p>This demonstration made {every} synthetic slides that look like H&amp;E, with the "
        "outlines of their tumour clusters. The label is the spatial arrangement: in half of the "
        f"slides the clusters are close together ({escape_text(CLASSES[0])}), in the others they "
        f"are dispersed ({escape_text(CLASSES[1])}). Clusters, tumour cells, glands, fat and "
        "stroma are the same in number and size, and each cluster lies within one tile. No single "
        "tile therefore shows the label; only the positions of tiles do.</p>"
        f"<p>{used} slides became bags of {result.bags.tiles:,} tiles in all, encoded offline. "
        "Four models were cross-validated on the same folds, and two of them exported to ONNX. "
        "Every slide was predicted by the exported model that was not trained on it.</p>"
        '<p class="note">Synthetic slides and one seed: a demonstration, not a benchmark.</p>'
    )


def _render_thumbnails(result: DemoResult) -> str:
    folder = result.folder.results / "thumbnails"
    figures = [
        _render_image(folder / f"{slide.slide_id}.jpg", f"{slide.slide_id}: {CLASSES[slide.label]}")
        for slide in result.illustrated_slides
    ]
    return f'<div class="strip">{"".join(figures)}</div>'


def _render_comparison(result: DemoResult) -> str:
    report = result.report
    table = summary_table(
        report.estimates, caption=report.make_summary_caption(), style=report.style
    )
    conclusions = list_conclusions(report.comparisons, level=report.level, style=report.style)
    listed = "".join(f"<li>{escape_text(sentence)}</li>" for sentence in conclusions)
    source = base64.b64encode(report.svg_plots["roc"]).decode()
    roc = f'<img alt="ROC curves" src="data:image/svg+xml;base64,{source}">'
    return f"{_render_table(table)}<ul>{listed}</ul><figure>{roc}</figure>"


def _render_table(table: ResultTable) -> str:
    head = "".join(f"<th>{escape_text(text)}</th>" for text in table.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape_text(cell.text)}</td>' for cell in row)}</tr>\n"
        for row in table.rows
    )
    return f'<table><tr>{head}</tr>\n{rows}</table><p class="note">{escape_text(table.caption)}</p>'


def _render_heatmaps(result: DemoResult) -> str:
    listed = "".join(
        f"<li>{escape_text(name)}: tile scores find the clusters with AUC {measured.auc:.3f}, "
        f"mean over {measured.slides} slides; chance is 0.5</li>"
        for name, measured in result.localization.items()
    )
    first = [_find_first_slide(result.illustrated_slides, label) for label in range(len(CLASSES))]
    pictures = "".join(
        _render_image(
            result.folder.results / "heatmaps" / model / f"{slide.slide_id}_overlay.png",
            f"{model} on {slide.slide_id}, with the outlines of the clusters",
        )
        for model in EXPORTED_MODELS
        for slide in first
        if slide is not None
    )
    return f"<ul>{listed}</ul>{pictures}"


def _find_first_slide(slides: Sequence[SyntheticSlide], label: int) -> SyntheticSlide | None:
    return next((slide for slide in slides if slide.label == label), None)


def _render_failures(result: DemoResult) -> str:
    listed = "".join(
        f"<li>{escape_text(name)}: {escape_text(reason)}</li>"
        for name, reason in result.bags.failures.items()
    )
    marked = ", ".join(slide.slide_id for slide in result.slides if slide.artefact == "pen mark")
    return (
        f"<p>As intended: one slide has no tissue, one file is truncated.</p><ul>{listed}</ul>"
        f"<p>There is a pen mark on {escape_text(marked)}: "
        f"<code>cohort/tissue/{escape_text(marked)}.png</code> "
        "shows the detected tissue.</p>"
    )


def _render_new_slides(result: DemoResult) -> str:
    listed = "".join(
        f"<li>{escape_text(name)}: {escape_text(prediction)}</li>"
        for name, prediction in result.new_predictions.items()
    )
    return (
        f"<ul>{listed}</ul><p>A page for each is in <code>new/answers/reports</code>. "
        "<code>sacmil predict</code> made the predictions with the exported models of SAC-MIL, "
        "which need no torch.</p>"
    )


def _render_image(picture: Path, caption: str) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(picture) as opened:
        opened.thumbnail((_MAX_IMAGE_PX, 10 * _MAX_IMAGE_PX))
        opened.convert("RGB").save(buffer, format="JPEG", quality=85)
    source = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{escape_text(caption)}" src="data:image/jpeg;base64,{source}">'
        f"<figcaption>{escape_text(caption)}</figcaption></figure>"
    )
