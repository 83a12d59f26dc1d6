"""The documentation site: ``make docs`` builds ``docs/_build/html``, without the internet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

from generated_pages import list_public_modules  # noqa: E402
from sphinx.ext.napoleon import Config, GoogleDocstring  # noqa: E402

import sacmil  # noqa: E402

project = "sacmil"
author = "the sacmil developers"
copyright = author
version = release = sacmil.__version__

extensions = [
    "myst_nb",
    "autoapi.extension",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_llms_txt",
    "generated_pages",
]
exclude_patterns = ["_build", "_extensions", "_templates", "results/tables"]
nitpicky = False
suppress_warnings = [
    "autoapi.python_import_resolution",  # torch, h5py and others are not read
    "ref.python",  # several modules call a type Array
]

# --- pages and notebooks
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = True
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_merge_streams = True
copybutton_prompt_text = "$ "

smartquotes = False  # two hyphens are an option

# --- API pages: read from the source, nothing is imported
autoapi_dirs = [str(HERE.parent / "src" / "sacmil")]
autoapi_ignore = [f"*/{name}/*" for name in ("cli", "viewer", "kernels", "parallel", "reproduce")]
autoapi_root = "reference/api"
autoapi_add_toctree_entry = False
autoapi_keep_files = False
autoapi_member_order = "bysource"
autoapi_options = ["members", "show-inheritance"]
autoapi_python_class_content = "both"

# --- the site
html_theme = "furo"
html_title = "sacmil"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = True
llms_txt_title = "sacmil"
llms_txt_summary = "Predictions for whole slides by multiple instance learning: SAC-MIL and others."
llms_txt_exclude = ["reference/api/*", "genindex", "search", "py-modindex"]
llms_txt_uri_template = "_sources/{docname}{suffix}{sourcelink_suffix}"


PUBLIC_MODULES = list_public_modules()


def skip_private(app: Any, what: str, name: str, obj: Any, *skip_and_options: Any) -> bool:
    """Leave private modules out, but for the public names that they define."""
    skip, _ = skip_and_options
    if any(name == module or name.startswith(f"{module}.") for module in PUBLIC_MODULES):
        is_module = name in PUBLIC_MODULES
        is_private = name.rpartition(".")[2].startswith("_") and not is_module
        return obj.imported or obj.inherited or is_private
    return skip or any(part.startswith("_") for part in name.split(".")[1:])


def format_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Format a docstring in Google's style; of a constant it is a sentence, whatever its colons."""
    if what not in ("attribute", "data", "property"):
        parsed = GoogleDocstring(list(lines), Config(), app, what, name, obj, options)
        lines[:] = parsed.lines()


def setup(app: Any) -> None:
    """Register what ``conf.py`` adds."""
    app.connect("autoapi-skip-member", skip_private)
    if "autodoc-process-docstring" not in app.events.events:
        app.add_event("autodoc-process-docstring")  # autoapi fires it
    app.connect("autodoc-process-docstring", format_docstring)
