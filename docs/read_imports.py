"""Reader of the imports between files, for the diagram of the packages and for the test of their order.

A package is a side (torch_impl, tf_impl), or a folder or a module directly below common/. All files that
`python -m common.NAME` runs are together the package "commands".
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("torch_impl", "tf_impl")
COMMANDS = "commands"
Edges = set[tuple[str, str]]  # (importer, imported)


def read_sources(root: Path = ROOT) -> dict[str, str]:
    """Return the text of every Python file of common, torch_impl and tf_impl, by its path from the root."""
    paths = [path for top in ("common", *SIDES) for path in sorted((root / top).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def find_file_imports(sources: dict[str, str]) -> Edges:
    """Return pairs of paths (importer, imported), inside functions too. Files outside of the sources do not count."""

    def file_of(name: str) -> str:
        """Return the file of a dotted name or of its longest prefix that is a module; "" for other libraries."""
        stem = name.replace(".", "/")
        files = [path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in sources]
        return files[0] if files else file_of(name.rpartition(".")[0]) if name else ""

    pairs = {(path, file_of(name)) for path in sources for name in list_imported_names(path, sources[path])}
    return {(importer, imported) for importer, imported in pairs if imported not in ("", importer)}


@cache
def list_imported_names(path: str, source: str) -> list[str]:
    """Return the dotted names that a file imports; `from a import b` gives a.b, which need not be a module."""
    return list(_iterate_imported_names(path, source))


def _iterate_imported_names(path: str, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.split("/")[: -node.level] if node.level else []
            yield from (".".join([*package, *filter(None, [node.module]), alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and _get_name(node.func) in ("import_module", "__import__"):
            yield from (str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant))


def _get_name(function: ast.expr) -> str:
    """Return the last name of a called function: "c" of a.b.c; "" if it has none."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def find_package(path: str) -> str:
    """Return the package of a file, as the head of this module defines it."""
    parts = path.split("/")
    if is_command(path):
        return COMMANDS
    return parts[0] if parts[0] in SIDES else "/".join(parts[:2])


def is_command(path: str) -> bool:
    """Check whether `python -m common.NAME` runs this file."""
    return path.startswith("common/") and path.endswith("/__main__.py")


def find_package_imports(sources: dict[str, str]) -> Edges:
    """Return pairs of packages (importer, imported); both sides together are the package "sides"."""
    names = {path: "sides" if find_package(path) in SIDES else find_package(path) for path in sources}
    imports = find_file_imports(sources)
    pairs = {(names[a], names[b]) for a, b in imports if not a.endswith("/__main__.py")}
    # The imports of commands, without pairs that would point against an import of the packages themselves.
    pairs |= {(names[a], names[b]) for a, b in imports if (names[b], names[a]) not in pairs}
    return {(a, b) for a, b in pairs if a != b and "common/__init__.py" not in (a, b)}


def reduce_edges(edges: Edges) -> Edges:
    """Return the edges of an acyclic graph without edges that follow from others (its transitive reduction)."""

    def reaches(a: str, b: str) -> bool:
        return any(start == a and (end == b or reaches(end, b)) for start, end in edges)

    return {(a, b) for a, b in edges if not any(start == a and end != b and reaches(end, b) for start, end in edges)}
