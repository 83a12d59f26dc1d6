"""Pages and tables that the site makes from the package, so that they are never out of date.

- ``reference/commands/NAME.md`` from each command's own help.
- ``reference/python.md``, the public names of ``sacmil``.
- ``{model-facts} NAME``: size, options, recipes of a model and its results in our studies.
- ``{settings} package.module.Class``: the fields of a class of settings.

Cells of notebooks that begin with ``%%bash`` are shown without it.
"""

from __future__ import annotations

import ast
import csv
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import sacmil

DOCS = Path(__file__).parents[1]
TABLES = DOCS / "results" / "tables"
BY_PURPOSE = {
    "Bags": [
        "Bag", "EncoderId", "read_bag", "write_bag", "list_formats", "convert", "convert_cells",
    ],
    "Slides to bags": ["extract", "extract_slide"],
    "Cohorts and folds": ["Cohort", "read_cohort", "Task", "Dataset", "make_folds", "split_cohort"],
    "Models": [
        "list_models", "describe_model", "create_model", "register_model", "MILModel", "Output",
        "Recipe", "save_model", "load_model", "load_reference", "convert_model",
    ],
    "Training": ["cross_validate", "train", "Run"],
    "Predictions": ["predict", "predict_slides", "embed", "embed_bags", "Prediction"],
    "Evaluation": ["evaluate", "Evaluation", "compare", "Comparison", "calibrate"],
    "Heatmaps": ["draw_heatmaps"],
    "Deployment": ["export_model", "load_runtime"],
}  # fmt: skip
"""Every public name but ``__version__``; a new one that is missing here stops the build."""


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown."""
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def write_if_changed(path: Path, text: str) -> None:
    """Keep the time of a file when nothing is new, so that Sphinx need not read it again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# --- commands


def write_command_pages(_: Any) -> None:
    """One page per command, and a list of all."""
    from sacmil.cli.main import cli

    folder, rows, names = DOCS / "reference" / "commands", [], cli.list_commands(None)
    for name in names:
        command = cli.get_command(None, name)
        context = click.Context(command, info_name=f"sacmil {name}")
        write_if_changed(folder / f"{name}.md", "\n".join(describe_command(command, context)))
        first_paragraph = command.help.split("\n\n")[0].replace("\n", " ")
        rows.append([f"[`sacmil {name}`]({name}.md)", first_paragraph])
    for page in folder.glob("*.md"):
        if page.stem not in [*names, "index"]:
            page.unlink()
    tree = ["```{toctree}", ":hidden:", "", *names, "```"]
    lines = ["# Commands", "", *tree, "", *format_table(["command", "what it does"], rows)]
    lines += [
        "",
        "Exit code 0: everything was done. 1: something failed. 2: the call was wrong.",
        "",
    ]
    write_if_changed(folder / "index.md", "\n".join(lines))


def describe_command(command: Any, context: Any) -> Iterator[str]:
    """A page in Markdown with what ``--help`` shows."""
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"# {context.info_name}", "", "```text", f"{context.info_name} {usage}", "```", "")
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        is_verbatim = paragraph.startswith("\b")
        text = paragraph.removeprefix("\b").strip("\n")
        yield from ("```text", text, "```", "") if is_verbatim else (text, "")
    records = [option.get_help_record(context) for option in command.get_params(context)]
    rows = [[f"`{names}`", escape_markup(text)] for names, text in filter(None, records) if text]
    yield from format_table(["option", "meaning"], rows)
    yield ""


def escape_markup(text: str) -> str:
    """Text whose stars and brackets stand for themselves."""
    return re.sub(r"([*_<\[`])", r"\\\1", text)


# --- public names


def write_python_page(_: Any) -> None:
    """The public names by purpose, each with the first sentence of its docstring."""
    listed = {name for names in BY_PURPOSE.values() for name in names}
    missing = listed ^ set(sacmil.__all__) - {"__version__"}
    if missing:
        raise ValueError(f"BY_PURPOSE and sacmil.__all__ differ in {', '.join(sorted(missing))}")
    lines = [
        "# Python names",
        "",
        "Names load on first use: `import sacmil` loads no torch.",
        "",
    ]
    for purpose, names in BY_PURPOSE.items():
        rows = []
        for name in names:
            place, sentence = find_public_name(name)
            rows.append([f"{{py:obj}}`sacmil.{name} <{place}>`", sentence])
        lines += [f"## {purpose}", "", *format_table(["name", "what it is"], rows), ""]
    write_if_changed(DOCS / "reference" / "python.md", "\n".join(lines))


def find_public_name(name: str) -> tuple[str, str]:
    """Where a name of ``sacmil`` is defined, and the first line of its docstring."""
    module = next(m for m, names in sacmil._NAMES_OF_MODULE.items() if name in names.split())
    return find_definition(f"sacmil.{module}", name)


def list_public_modules() -> set[str]:
    """Modules that define a public name, also if they themselves are private."""
    names = set(sacmil.__all__) - {"__version__"}
    return {find_public_name(name)[0].rpartition(".")[0] for name in names}


def find_definition(module: str, name: str) -> tuple[str, str]:
    """The full name of what a module defines, and its docstring's first line, without an import."""
    path = DOCS.parent / "src" / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return find_definition(str(node.module), alias.name)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return f"{module}.{name}", (ast.get_docstring(node) or "").split("\n")[0].replace(
                "``", "`"
            )
    raise ValueError(f"{module} does not define {name}")


# --- directives


class MarkdownDirective(SphinxDirective):
    """Puts lines of Markdown in its own place."""

    required_arguments = 1

    def make_lines(self, argument: str) -> Iterator[str]:
        """The lines, as if they stood in the page."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the lines where the directive stands."""
        container = nodes.container()
        lines = list(self.make_lines(self.arguments[0]))
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), 0, container)
        return container.children


class ModelFacts(MarkdownDirective):
    """Size, options, recipes and results of a model."""

    def make_lines(self, argument: str) -> Iterator[str]:
        """Tables, each with a line that says what it is."""
        import torch

        from sacmil.models import create_model, describe_model

        about = describe_model(argument)
        with torch.device("meta"):
            model = create_model(argument, in_dim=1024, num_classes=2)
        count = sum(parameter.numel() for parameter in model.parameters())
        yield f"**{count:,} parameters** with features of 1,024 and two classes."
        yield from ("", "Options:", "")
        options = [
            [f"`{name}`", f"`{default!r}`", about.help.get(name, "")]
            for name, default in about.options.items()
        ]
        yield from format_table(["option", "default", "meaning"], options)
        yield from ("", "Recipes, and what they change in the paper's:", "")
        recipes = [
            [f"`{name}`", ", ".join(f"`{key}={value}`" for key, value in changes.items()) or "–"]
            for name, changes in about.recipes.items()
        ]
        yield from format_table(["recipe", "changes"], recipes)
        rows = list(iter_results(argument))
        if rows:
            yield from ("", "AUC in our studies, 95 % interval:", "")
            header = ["study, round", "task", argument, "best model of the round"]
            yield from format_table(header, rows)


def iter_results(model: str) -> Iterator[list[str]]:
    """Rows of results of a model, beside the best model of the same round and task."""
    for path in sorted(TABLES.glob("*.csv")):
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        rounds = [row for row in rows if "confirmation" in row["round"] and row["auc"]]
        for task in dict.fromkeys(row["task"] for row in rounds):
            ours = [row for row in rounds if row["task"] == task and row["model"] == model]
            if not ours:
                continue
            row = max(ours, key=lambda one: rate_round(one["round"]))
            same = [o for o in rounds if o["task"] == task and o["round"] == row["round"]]
            best = max(same, key=lambda one: float(one["auc"]))
            study = f"[{path.stem}](../../results/{path.stem}.md), {row['round']}"
            yield [
                study,
                row["task"],
                format_auc(row),
                f"`{best['model']}` {float(best['auc']):.3f}",
            ]


def rate_round(name: str) -> int:
    """Of several rounds the main one counts, as on the page of the study."""
    return {"confirmation": 2, "first-confirmation": 0}.get(name, 1)


def format_auc(row: dict[str, str]) -> str:
    """An AUC and its interval."""
    auc, low, high = (float(row[key]) for key in ("auc", "auc_low", "auc_high"))
    return f"{auc:.3f} ({low:.3f}–{high:.3f})"


class SettingsTable(MarkdownDirective):
    """The fields of a class of settings."""

    def make_lines(self, argument: str) -> Iterator[str]:
        """A table of names, defaults and docstrings."""
        module, _, name = argument.rpartition(".")
        settings = getattr(importlib.import_module(module), name)
        rows = [
            [f"`{field}`", f"`{default}`" if default else "required", text]
            for field, default, text in iter_fields(settings)
        ]
        yield from format_table(["setting", "default", "meaning"], rows)


def iter_fields(settings: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and docstring of each field, as they stand in the source."""
    body = ast.parse(inspect.getsource(settings)).body[0].body  # type: ignore[attr-defined]
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or ast.unparse(node.annotation).startswith(
            "ClassVar"
        ):
            continue
        default = ast.unparse(node.value) if node.value else ""
        default = re.sub(r"^Field\((?:default(?:_factory)?=)?([^,)]*\)?).*", r"\1", default)
        default = re.sub(r"^field\(default_factory=(.*)\)$", r"\1()", default)
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        text = inspect.cleandoc(following.value.value) if is_text else ""  # type: ignore[union-attr]
        yield ast.unparse(node.target), default, text.replace("\n", " ").replace("``", "`")


def show_as_shell(_: Any, document: nodes.document) -> None:
    """Show a cell of shell commands as such, so that what a reader copies can be pasted."""
    for block in document.findall(nodes.literal_block):
        first, _, rest = block.astext().partition("\n")
        if first == "%%bash":
            block.children, block.rawsource = [nodes.Text(rest)], rest
            block["language"] = "bash"


def setup(app: Any) -> dict[str, Any]:
    """Register the pages and directives."""
    app.connect("builder-inited", write_command_pages, priority=100)
    app.connect("builder-inited", write_python_page, priority=100)
    app.connect("doctree-read", show_as_shell)
    app.add_directive("model-facts", ModelFacts)
    app.add_directive("settings", SettingsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
