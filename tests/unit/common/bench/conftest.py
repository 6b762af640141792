"""The result of a benchmark that never ran."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.bench.contestant import Contestant, ContestantCommand
from common.bench.figures import MeasuredContestant, build_result
from common.bench.options import ContestantDefinition, load_options
from common.bench.plan import PlannedContestant
from common.bench.result import BenchResult
from tests.conftest import MakeConfig

SLOWER = [1.0, 0.5, 0.25, 0.5]  # speed of the machine in each round
DEFINED = ["+bench.definitions.ddp={framework: torch}", "+bench.definitions.ddp_x1={framework: torch}"]


@pytest.fixture
def result(tmp_path: Path, make_config: MakeConfig) -> BenchResult:
    """Of ddp x2 and x1, a script, and matrices."""
    options, _ = load_options(["bench.contestants=[ddp,ddp_x1,hf_trainer]", *DEFINED])
    base = make_config("strategy=ddp")
    two, one = (replace(base, strategy=replace(base.strategy, replicas=count)) for count in (2, 1))

    def planned(name: str, config: Any) -> PlannedContestant:
        command = ContestantCommand(name, [], tmp_path / name)
        definition = options.definitions.get(name, ContestantDefinition("torch", "matrix_rate"))
        return PlannedContestant(definition, config, command, 5e6, None, 4)

    return build_result(
        options,
        ["model=bert_mini"],
        [
            measured(tmp_path, "ddp", planned("ddp", two), 300.0, summary='{"compilations": 3}'),
            measured(tmp_path, "ddp_x1", planned("ddp_x1", one), 250.0),
            measured(tmp_path, "hf_trainer", planned("hf_trainer", two), 200.0),
            measured(tmp_path, "matrices", planned("matrices", two), 3e9, "flops"),
        ],
    )


def measured(
    directory: Path, name: str, planned: PlannedContestant, speed: float, unit: str = "examples", summary: str = "{}"
) -> MeasuredContestant:
    """One that does `speed` units per second while the machine is as fast as in the first round."""
    (directory / name).mkdir(parents=True)
    (directory / name / "summary.json").write_text(summary)
    blocks = [
        [
            {"step": 1, unit: 7, "tokens": 70, "seconds": 3.0},
            {"step": 2, unit: 7 + speed * factor, "tokens": 70 + 10 * speed * factor, "seconds": 4.0},
        ]
        for factor in SLOWER
    ]
    contestant = SimpleNamespace(name=name, directory=directory / name, blocks=blocks, start_up=2.0, peak_memory=2**20)
    return MeasuredContestant(planned, cast(Contestant, contestant))
