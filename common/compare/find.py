"""The runs that are compared when none is named."""

from pathlib import Path
from typing import Any

from common.compare.read import read_config, read_summary
from common.compare.runs import variant
from common.errors import UserError

FRAMEWORKS = ("torch", "tf")
STRATEGIES = ("single", "dp", "ddp", "allreduce", "mirrored", "multiworker", "central_storage", "parameter_server")


def newest_runs(root: Path) -> tuple[list[Path], list[str]]:
    """The newest run of each framework, strategy and variant of it under `root`, and notes on what was left out.

    Order: torch before tf, single before the other strategies. Newest by `started` of summary.json. Raises UserError
    when there is none.
    """
    newest: dict[tuple[str, str, str], tuple[str, Path]] = {}
    notes: list[str] = []
    for file in sorted(root.rglob("summary.json")):
        try:
            summary, config = read_summary(file), read_config(file.with_name("config.yaml"))
        except UserError as error:
            notes.append(f"left out: {error}")
            continue
        key = (summary["framework"], summary["strategy"], variant(summary["strategy"], config))
        candidate = (_started(summary), file.parent)
        newest[key] = max(newest.get(key, candidate), candidate)
    if not newest:
        raise UserError(
            f"runs={root}: no runs found; make some with `python -m torch_impl.train strategy=ddp` and "
            "`python -m tf_impl.train strategy=mirrored`, or name run directories"
        )
    return [newest[key][1] for key in sorted(newest, key=_order)], notes


def _started(summary: dict[str, Any]) -> str:
    return str(summary.get("started") or "")


def _order(key: tuple[str, str, str]) -> tuple[int, int, str, str, str]:
    framework, strategy, kind = key
    return (
        FRAMEWORKS.index(framework) if framework in FRAMEWORKS else len(FRAMEWORKS),
        STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES),
        framework,
        strategy,
        kind,
    )
