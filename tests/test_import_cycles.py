"""No module imports itself by a detour, not even inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import sacmil

ROOT = Path(sacmil.__file__).parent


def module_name(file: Path) -> str:
    parts = ("sacmil", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from run_nodes(node)


def imported_modules(name: str, file: Path, modules: set[str]) -> set[str]:
    """Modules of sacmil that a file imports, at its top or inside functions.

    Registries import their own package for the path of its folder, which exists by then.
    """
    found: set[str] = set()
    own_package = name.rpartition(".")[0]
    for node in run_nodes(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} - {own_package}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else str(node.module))
    return found & modules


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_have_no_cycles_even_inside_functions() -> None:
    files = {module_name(file): file for file in ROOT.rglob("*.py")}
    graph = {name: imported_modules(name, file, set(files)) for name, file in files.items()}
    assert sum(map(len, graph.values())) > len(files)
    assert find_cycle(graph) == []


def test_a_cycle_by_an_import_inside_a_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from sacmil import b\n")
    (tmp_path / "b.py").write_text("import sacmil.a\n")
    (tmp_path / "c.py").write_text("if TYPE_CHECKING:\n    import sacmil.c\n")
    names = {"sacmil.a", "sacmil.b", "sacmil.c"}
    files = {name: tmp_path / f"{name[-1]}.py" for name in names}
    graph = {name: imported_modules(name, file, names) for name, file in files.items()}
    assert set(find_cycle(graph)) == {"sacmil.a", "sacmil.b"}
    assert graph["sacmil.c"] == set()
