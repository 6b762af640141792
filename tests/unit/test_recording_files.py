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
            "following",
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
    "__future__", "atexit", "collections", "contextlib", "copy", "dataclasses", "functools", "hashlib", "inspect", "io",
    "itertools", "json", "math", "os", "pathlib", "platform", "random", "re", "sys", "threading", "time", "types",
    "typing", "warnings", "weakref",
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


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
