"""Which runs are compared when none is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.compare.read import read_config, read_summary
from common.compare.runs import variant
from common.config.strategies import TITLES, strategies_of
from common.errors import UserError


def newest_runs(root: Path) -> tuple[list[Path], list[str]]:
    """The newest run of each framework, strategy and variant of it under `root`, and why others cannot be read.

    Order: frameworks and strategies as common.config.strategies lists them, so torch before tf and single first;
    unknown ones come last. The newest has the latest `started` in summary.json. Raises UserError where there is none.
    """
    newest: dict[tuple[str, str, str], tuple[str, Path]] = {}
    errors: list[str] = []
    for file in sorted(root.rglob("summary.json")):
        try:
            summary, config = read_summary(file), read_config(file.with_name("config.yaml"))
        except UserError as error:
            errors.append(str(error))
            continue
        key = (summary["framework"], summary["strategy"], variant(summary["strategy"], config))
        candidate = (_started(summary), file.parent)
        newest[key] = max(newest.get(key, candidate), candidate)
    if not newest and not errors:
        raise UserError(
            f"runs={root}: no runs found; make some with `python -m torch_impl.train strategy=ddp` and "
            "`python -m tf_impl.train strategy=mirrored`, or name run directories"
        )
    frameworks, strategies = list(TITLES), strategies_of()

    def order(key: tuple[str, str, str]) -> tuple[Any, ...]:
        framework, strategy, _ = key
        return _position(framework, frameworks), _position(strategy, strategies), key

    return [newest[key][1] for key in sorted(newest, key=order)], errors


def _started(summary: dict[str, Any]) -> str:
    return str(summary.get("started") or "")


def _position(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)
