"""Tests of the source text of the files that record within the environment of a training script."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    ROOT / "common/__init__.py",
    *(
        ROOT / "common/recording" / f"{name}.py"
        for name in (
            "__init__",
            "array_norms",
            "clip_factors",
            "example_lists",
            "following",
            "flattened_axes",
            "gradient_changes",
            "index_notation",
            "layer_attributes",
            "operation_format",
            "operation_observer",
            "other_arrays",
            "record_format",
            "record_writer",
            "tensor_writer",
        )
    ),
    *(ROOT / side / "__init__.py" for side in ("torch_impl", "tf_impl")),
    *(
        path
        for side in ("torch_impl", "tf_impl")
        for path in sorted((ROOT / side / "record").glob("*.py"))
        if path.name != "follower.py"  # following needs all of Lockstep
    ),
]
STANDARD = {
    "__future__", "atexit", "collections", "contextlib", "copy", "dataclasses", "functools", "gc", "hashlib", "inspect",
    "io", "itertools", "json", "linecache", "math", "os", "pathlib", "platform", "random", "re", "sys", "threading",
    "time", "types", "typing", "warnings", "weakref",
}  # fmt: skip
ALLOWED = STANDARD | {"numpy", "common"}
OF_SIDE = {"torch_impl": {"torch", "torch_impl"}, "tf_impl": {"tensorflow", "keras", "tf_impl"}, "common": set()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_recording_files_run_in_old_environments(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    top_level = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [name for node in top_level for name in _names(node)]
    side = path.relative_to(ROOT).parts[0]
    for module in modules:
        assert module.partition(".")[0] in ALLOWED | OF_SIDE[side], f"{path} imports {module}"
        imported = ROOT / Path(*module.split("."))
        if module.partition(".")[0] in OF_SIDE:
            candidates = {imported.with_suffix(".py"), imported / "__init__.py"}
            assert candidates & set(FILES), f"{path} imports {module}, which does not record"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_recording_files_compute_no_unions_of_types(path: Path) -> None:
    """Python 3.9 cannot compute them. It does not compute annotations, and only type checkers read TYPE_CHECKING."""
    computed = _Computed()
    computed.visit(ast.parse(path.read_text()))
    assert computed.unions == []


class _Computed(ast.NodeVisitor):
    """Visitor of the expressions that run, which lists the lines of unions of types."""

    def __init__(self) -> None:
        self.unions: list[int] = []

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Skip the annotation."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.decorator_list, *node.body):
            self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and isinstance(node.args[1], ast.BinOp):
            self.unions.append(node.lineno)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        sides = (node.left, node.right)
        if isinstance(node.op, ast.BitOr) and any(isinstance(x, ast.Constant) and x.value is None for x in sides):
            self.unions.append(node.lineno)
        self.generic_visit(node)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
