"""Tests of the source text. Packages import each other in one order, without cycles, and files are small."""

import pytest

from docs.draw_architecture import ABOUT, PAGE, draw, find_arrows, insert
from docs.read_imports import COMMANDS, Edges, find_file_imports, find_package, is_command, read_sources, reduce_edges

# Each package may import the packages before it.
ORDER = [
    "common/__init__.py",
    "common/errors.py",
    "common/terminal.py",
    "common/hidden_packages.py",
    "common/run_module.py",
    "common/console.py",
    "common/output.py",
    "common/hardware.py",
    "common/versions.py",
    "common/interpreter_probe.py",
    "common/interpreter.py",
    "common/records",
    "common/recording",
    "common/config",
    "common/data",
    "common/map",
    "common/models",
    "common/metrics",
    "common/training",
    "common/run",
    "common/cluster",
    "common/diagnose",
]
BESIDE = {
    "common/profile": set(),
    "common/statistics": set(),  # works on numbers
    # reads run directories, and starts the commands that write them
    "common/compare": {
        "common/errors.py",
        "common/interpreter.py",
        "common/records",
        "common/recording",
        "common/config",
        "common/training",
        "common/cluster",
        "common/profile",
        "common/statistics",
    },
    "common/report": {
        "common/errors.py",
        "common/terminal.py",
        "common/records",
        "common/config",
        "common/profile",
        "common/statistics",
        "common/compare",
    },
}
SIDES = ["torch_impl", "tf_impl"]
MAY_IMPORT = {name: set(ORDER[:index]) for index, name in enumerate(ORDER)} | BESIDE
MAY_IMPORT["common/map"] = {
    "common/errors.py",
    "common/run_module.py",
    "common/interpreter.py",
    "common/config",
}  # works on descriptions of models
MAY_IMPORT |= {"common/prepare": set(), "common/export": set()}  # the package of a single command
MAY_IMPORT["common/bench"] = {*ORDER, *BESIDE}
MAY_IMPORT |= {side: {*ORDER, *BESIDE, "common/bench"} for side in SIDES}  # contestants share the task
MAY_IMPORT[COMMANDS] = {*ORDER, *BESIDE, "common/bench"}  # they may import all of common, and no package imports them
LONGEST, SHORT, SHARE_OF_SHORT = 300, 200, 0.8  # the number of lines of a file


def find_wrong_imports(sources: dict[str, str]) -> list[str]:
    """Return the imports that violate the order, and the packages that the order lacks."""
    unplaced = {find_package(path) for path in sources} - MAY_IMPORT.keys()
    return [f"{name} has no place in the order of the packages" for name in sorted(unplaced)] + [
        f"{importer} imports {imported}"
        for importer, imported in sorted(find_file_imports(sources))
        if find_package(importer) != find_package(imported)
        and find_package(importer) in MAY_IMPORT
        and find_package(imported) not in MAY_IMPORT[find_package(importer)] | unplaced
    ]


def find_cycles(sources: dict[str, str]) -> list[str]:
    """Return the import cycles of files, and at each depth of the tree those of the entries of one folder."""
    # Nothing imports a command, so a command is in no cycle. Its imports would add a false cycle of its folder.
    imports = {(importer, imported) for importer, imported in find_file_imports(sources) if not is_command(importer)}
    cycles = _group_cycles(imports)
    for depth in range(1 + max(path.count("/") for path in sources)):
        entries = {tuple("/".join(path.split("/")[: depth + 1]) for path in pair) for pair in imports}
        same_folder = {(a, b) for a, b in entries if a != b and a.rpartition("/")[0] == b.rpartition("/")[0]}
        cycles |= _group_cycles(same_folder)
    return [" <-> ".join(sorted(cycle)) for cycle in sorted(cycles, key=sorted)]


def _group_cycles(edges: Edges) -> set[frozenset[str]]:
    """Return the sets of nodes that all reach each other."""
    imported: dict[str, set[str]] = {name: set() for edge in edges for name in edge}
    for start, end in edges:
        imported[start].add(end)
    reached = {name: {name} for name in imported}
    for name, nodes in reached.items():
        unvisited = [name]
        while unvisited:
            new = imported[unvisited.pop()] - nodes
            nodes |= new
            unvisited += new
    together = {frozenset(other for other in reached[name] if name in reached[other]) for name in reached}
    return {nodes for nodes in together if len(nodes) > 1}


def find_long_files(sources: dict[str, str]) -> list[str]:
    """Return the violations of the limits of file sizes."""
    lines = {path: len(source.splitlines()) for path, source in sources.items()}
    violations = [f"{path} has {count} lines" for path, count in sorted(lines.items()) if count > LONGEST]
    long = sorted(path for path, count in lines.items() if count >= SHORT)
    if len(long) > (1 - SHARE_OF_SHORT) * len(lines):
        violations.append(f"{len(long)} of {len(lines)} files have {SHORT} lines or more: {', '.join(long)}")
    return violations


@pytest.mark.slow
def test_the_packages_import_in_one_order() -> None:
    sources = read_sources()
    assert len(find_file_imports(sources)) > 200
    wrong_imports = find_wrong_imports(sources)
    assert not wrong_imports, "\n".join(wrong_imports)


@pytest.mark.slow
def test_the_comparison_reads_run_directories_only() -> None:
    training_packages = {"common/training", "common/cluster"}
    importers = {
        importer
        for importer, imported in find_file_imports(read_sources())
        if find_package(imported) in training_packages
    }
    # The command itself only handles signals, so that nothing of an unpacked bundle is left.
    allowed = {"common/compare/train_missing.py", "common/compare/__main__.py"}
    assert {path for path in importers if path.startswith("common/compare/")} == allowed


@pytest.mark.slow
def test_no_imports_form_a_cycle() -> None:
    cycles = find_cycles(read_sources())
    assert not cycles, "\n".join(cycles)


def test_files_are_small() -> None:
    violations = find_long_files(read_sources())
    assert not violations, "\n".join(violations)


@pytest.mark.slow
def test_the_diagram_shows_the_current_imports() -> None:
    assert {package for arrow in find_arrows() for package in arrow} == ABOUT.keys()
    page = PAGE.read_text(encoding="utf-8")
    assert draw() in page, "docs/architecture.md does not show the current imports; run make architecture"
    assert insert(draw(), page) == page


def test_arrows_that_follow_from_others_are_left_out() -> None:
    chain = {("run", "models"), ("models", "data"), ("data", "errors"), ("compare", "errors")}
    assert reduce_edges(chain | {("run", "data"), ("run", "errors"), ("models", "errors")}) == chain


# The checks report planted violations

CLEAN = {
    "common/__init__.py": "",
    "common/errors.py": "",
    "common/hardware.py": "import os\nfrom common.errors import UserError",
    "common/config/__init__.py": "",
    "common/config/schema.py": "from common.errors import UserError",
    "common/data/batch_plan.py": "from common.config import schema",
    "common/data/text/text_corpus.py": "from common.data.batch_plan import steps",
    "common/models/spec.py": "from ..data import plan",
    "common/training/loop.py": "from common.models.spec import Spec",
    "common/run/recorder.py": "import common.training.loop",
    "common/cluster/launcher.py": "def start():\n    from common.run.recorder import Recorder",
    "common/compare/read.py": "from common.errors import UserError\nfrom common.config.schema import KEYS",
    "common/models/__main__.py": "from common.cluster import launcher",
    "common/bench/__main__.py": "from common.compare.read import rows",
    "torch_impl/train.py": "from common.run.recorder import prepare\nfrom torch_impl.strategies import single",
    "torch_impl/step.py": "import torch",
    "torch_impl/strategies/single.py": "from torch_impl.step import step",
    "tf_impl/train.py": "import common.cluster.launcher as launcher",
}


def test_imports_in_the_order_are_not_reported() -> None:
    assert find_wrong_imports(CLEAN) == find_cycles(CLEAN) == find_long_files(CLEAN) == []


@pytest.mark.parametrize(
    ("path", "planted", "reported"),
    [
        ("common/errors.py", "import common.hardware", "common/errors.py imports common/hardware.py"),
        (
            "common/config/schema.py",
            "from common.data import batch_plan",
            "common/config/schema.py imports common/data/batch_plan.py",
        ),
        (
            "common/data/text/text_corpus.py",
            "def read():\n    from common.models.spec import Spec",
            "common/data/text/text_corpus.py imports common/models/spec.py",
        ),
        (
            "common/data/batch_plan.py",
            "from ..run import recorder",
            "common/data/batch_plan.py imports common/run/recorder.py",
        ),
        (
            "common/training/loop.py",
            "if TYPE_CHECKING:\n    from common.run.recorder import Recorder",
            "common/training/loop.py imports common/run/recorder.py",
        ),
        (
            "common/run/recorder.py",
            "from common.models import __main__",
            "common/run/recorder.py imports common/models/__main__.py",
        ),
        (
            "torch_impl/train.py",
            "import common.bench.__main__",
            "torch_impl/train.py imports common/bench/__main__.py",
        ),
        (
            "common/compare/read.py",
            "from common.run.recorder import R",
            "common/compare/read.py imports common/run/recorder.py",
        ),
        ("common/compare/read.py", "import common.hardware", "common/compare/read.py imports common/hardware.py"),
        (
            "common/cluster/launcher.py",
            "import common.compare.read",
            "common/cluster/launcher.py imports common/compare/read.py",
        ),
        (
            "common/bench/__main__.py",
            "from torch_impl import train",
            "common/bench/__main__.py imports torch_impl/train.py",
        ),
        (
            "common/run/recorder.py",
            "importlib.import_module('tf_impl.train')",
            "common/run/recorder.py imports tf_impl/train.py",
        ),
        ("tf_impl/train.py", "from torch_impl.step import step", "tf_impl/train.py imports torch_impl/step.py"),
        ("torch_impl/step.py", "__import__('tf_impl.train')", "torch_impl/step.py imports tf_impl/train.py"),
        ("common/network.py", "", "common/network.py has no place in the order of the packages"),
    ],
)
def test_an_import_against_the_order_is_seen(path: str, planted: str, reported: str) -> None:
    assert find_wrong_imports(CLEAN | {path: f"{CLEAN.get(path, '')}\n{planted}\n"}) == [reported]


@pytest.mark.parametrize(
    ("path", "planted", "reported"),
    [
        (
            "common/config/data.py",
            "def f():\n    from common.config.schema import KEYS",
            ["common/config/data.py <-> common/config/schema.py"],
        ),
        ("common/data/hub.py", "import common.data.text.text_corpus", ["common/data/hub.py <-> common/data/text"]),
        ("torch_impl/step.py", "from .strategies import single", ["torch_impl/step.py <-> torch_impl/strategies"]),
    ],
)
def test_a_cycle_is_seen(path: str, planted: str, reported: list[str]) -> None:
    sources = CLEAN | {
        "common/config/schema.py": "from common.config.data import Data",
        "common/data/text/hub_text.py": "from common.data.hub import download",
        "common/config/data.py": "",
        "common/data/hub.py": "",
    }
    assert find_cycles(sources) == []
    assert set(reported) <= set(find_cycles(sources | {path: planted}))


def test_a_cycle_of_packages_without_a_cycle_of_files_is_seen() -> None:
    sources = {"common/run/a.py": "import common.data.b", "common/data/c.py": "import common.run.d"}
    sources |= {"common/run/d.py": "", "common/data/b.py": ""}
    assert find_cycles(sources) == ["common/data <-> common/run"]


def test_long_files_are_seen() -> None:
    lines = {f"common/run/{count}.py": "x\n" * count for count in (10, 199, 100, 1, 300, 20, 30, 40)}
    assert find_long_files(lines) == []
    assert find_long_files(lines | {"common/run/301.py": "x\n" * 301}) == [
        "common/run/301.py has 301 lines",
        "2 of 9 files have 200 lines or more: common/run/300.py, common/run/301.py",
    ]
    assert len(find_long_files({"a.py": "x\n" * 200, "b.py": ""})) == 1
