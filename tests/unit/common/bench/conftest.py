"""The result of an invented benchmark."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from common.bench.contestant import Contestant, ContestantCommand
from common.bench.figures import MeasuredContestant, build_result
from common.bench.options import ContestantDefinition, load_options
from common.bench.plan import PlannedContestant
from common.bench.result import BenchResult
from common.config.schema import Config
from tests.conftest import MakeConfig

MACHINE_SPEEDS = [1.0, 0.5, 0.25, 0.5]  # of each round, relative to the first
DEFINITIONS = ["+bench.definitions.ddp={framework: torch}", "+bench.definitions.ddp_x1={framework: torch}"]


@pytest.fixture
def result(tmp_path: Path, make_config: MakeConfig) -> BenchResult:
    """The result of ddp with 2 replicas and with 1, a script, and matrix products."""
    options, _ = load_options(["bench.contestants=[ddp,ddp_x1,hf_trainer]", *DEFINITIONS])
    base = make_config("strategy=ddp")
    two_replicas, one_replica = (replace(base, strategy=replace(base.strategy, replicas=count)) for count in (2, 1))

    def plan(name: str, config: Config) -> PlannedContestant:
        command = ContestantCommand(name, [], tmp_path / name)
        definition = options.definitions.get(name, ContestantDefinition("torch", "matrix_rate"))
        return PlannedContestant(definition, config, command, 5e6, None, 4)

    return build_result(
        options,
        ["model=bert_mini"],
        [
            measure(tmp_path, "ddp", plan("ddp", two_replicas), 300.0, compilations=3),
            measure(tmp_path, "ddp_x1", plan("ddp_x1", one_replica), 250.0),
            measure(tmp_path, "hf_trainer", plan("hf_trainer", two_replicas), 200.0),
            measure(tmp_path, "matrices", plan("matrices", two_replicas), 3e9, "flops"),
        ],
    )


def measure(
    directory: Path,
    name: str,
    planned: PlannedContestant,
    speed: float,
    unit: str = "examples",
    compilations: int | None = None,
) -> MeasuredContestant:
    """Return the measurement of a contestant that does `speed` units per second in the first round."""
    (directory / name).mkdir(parents=True)
    if compilations is not None:
        facts = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "completed"}
        (directory / name / "summary.json").write_text(json.dumps({**facts, "compilations": compilations}))
    blocks = [
        [
            {"step": 1, unit: 7, "tokens": 70, "seconds": 3.0},
            {"step": 2, unit: 7 + speed * factor, "tokens": 70 + 10 * speed * factor, "seconds": 4.0},
        ]
        for factor in MACHINE_SPEEDS
    ]
    contestant = SimpleNamespace(name=name, directory=directory / name, blocks=blocks, start_up=2.0, peak_memory=2**20)
    return MeasuredContestant(planned, cast(Contestant, contestant))
