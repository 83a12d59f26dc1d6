"""The demonstration's report: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from sacmil.atomic import atomic_write
from sacmil.evaluation.html_page import render_page
from sacmil.synthetic.slides import CLASSES
from sacmil.workflows.demo.result import DemoResult
from sacmil.workflows.demo.settings import EXPORTED_MODELS


def write_page(result: DemoResult) -> None:
    """Write index.html atomically."""
    first_slides = {slide.label: slide for slide in reversed(result.illustrated_slides)}
    page = render_page(
        "demo.html",
        title="Where, not how many",
        result=result,
        classes=CLASSES,
        exported_models=EXPORTED_MODELS,
        first_slides=[slide for _, slide in sorted(first_slides.items())],
        marked=", ".join(s.slide_id for s in result.slides if s.artefact == "pen mark"),
        next_commands=list_next_commands(result.folder.out),
    )
    with atomic_write(result.folder.page) as partial:
        partial.write_text(page, encoding="utf-8")


def list_next_commands(out: Path) -> list[str]:
    """Return commands to run next."""
    return [
        f"sacmil view {out / 'results'}",
        f"sacmil evaluate {out / 'run'}",
        f"sacmil compare {out / 'run'}",
    ]
