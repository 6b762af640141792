"""Write the diagram of the packages into docs/architecture.md, from the imports of the code, for `make architecture`.

An arrow from A to B says that A imports B. Arrows that follow from others are left out.
"""

import re
from pathlib import Path

from docs.read_imports import COMMANDS, Edges, find_package_imports, read_sources, reduce_edges

PAGE = Path(__file__).with_name("architecture.md")
DIAGRAM = re.compile(r"^```mermaid\nflowchart TD\n.*?```\n", re.DOTALL | re.MULTILINE)  # the first one of the page
MODULES = "common/*.py"  # the modules directly below common, which import nothing but each other
NAMES = {"sides": "torch_impl, tf_impl", COMMANDS: "common/*/__main__.py"}
ABOUT = {
    "sides": "one framework each: models, steps, strategies",
    COMMANDS: "the commands",
    "common/bench": "contestants that take turns",
    "common/report": "pages and pictures of a verdict",
    "common/compare": "runs to a verdict",
    "common/profile": "traces of profiled steps",
    "common/statistics": "paired numbers",
    "common/diagnose": "the cause of a difference",
    "common/cluster": "hosts, ranks, processes, signals",
    "common/run": "the run directory, checkpoints, resume",
    "common/training": "the loop, the interface of a strategy",
    "common/metrics": "exact for uneven shards",
    "common/models": "names, shapes, initial weights",
    "common/map": "the variables of two models, paired and proven",
    "common/data": "examples, cache, batch plan, global batches",
    "common/config": "every key with its type, limits and unit",
    "common/recording": "records of training scripts",
    "common/records": "checked reading of run directories",
    MODULES: "errors, versions, hardware, other interpreters",
}


def find_arrows() -> Edges:
    """Return the imports between packages that do not follow from others. The modules of common are one package."""
    imports = find_package_imports(read_sources())
    merged = {(_merge_modules(importer), _merge_modules(imported)) for importer, imported in imports}
    return reduce_edges({(importer, imported) for importer, imported in merged if importer != imported})


def _merge_modules(package: str) -> str:
    return MODULES if package.endswith(".py") else package


def draw() -> str:
    """Return the diagram in the language of Mermaid, as a block of Markdown."""
    ids = {package: re.sub(r"\W", "", package) for package in ABOUT}
    boxes = [f'    {ids[name]}["<b>{NAMES.get(name, name)}</b><br>{about}"]' for name, about in ABOUT.items()]
    arrows = [f"    {ids[importer]} --> {ids[imported]}" for importer, imported in sorted(find_arrows())]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *arrows, "```", ""])


def insert(diagram: str, page: str) -> str:
    """Return the text of the page with this diagram in the place of its first one."""
    return DIAGRAM.sub(lambda _: diagram, page, count=1)


if __name__ == "__main__":
    PAGE.write_text(insert(draw(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
