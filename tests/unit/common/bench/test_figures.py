"""Ratios are taken within rounds; efficiency and utilisation are of the contestants that belong together."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.bench.figures import Measured, figures
from common.bench.plan import Planned
from common.bench.settings import Definition, load_settings
from common.bench.table import COLUMNS, cells, sentences
from common.bench.turns import Command, Contestant
from tests.conftest import MakeConfig

SLOWER = [1.0, 0.5, 0.25, 0.5]  # speed of the machine in each round


def measured(
    directory: Path, name: str, planned: Planned, speed: float, unit: str = "examples", summary: str = "{}"
) -> Measured:
    """One that does `speed` units per second while the machine is as fast as in the first round."""
    (directory / name).mkdir(parents=True)
    (directory / name / "summary.json").write_text(summary)
    blocks = [
        [{"step": 1, unit: 7, "tokens": 70, "seconds": 3.0}]
        + [{"step": 2, unit: 7 + speed * factor, "tokens": 70 + 10 * speed * factor, "seconds": 4.0}]
        for factor in SLOWER
    ]
    contestant = SimpleNamespace(name=name, directory=directory / name, blocks=blocks, start_up=2.0, peak_memory=2**20)
    return Measured(planned, cast(Contestant, contestant))


@pytest.fixture
def result(tmp_path: Path, make_config: MakeConfig) -> dict[str, Any]:
    """Of ddp x2 and x1, a script, and matrices."""
    settings, _ = load_settings(["bench.contestants=[ddp,ddp_x1,hf_trainer]", *DEFINED])
    base = make_config("strategy=ddp")
    two, one = (replace(base, strategy=replace(base.strategy, replicas=count)) for count in (2, 1))

    def planned(name: str, config: Any, matrices: bool = False) -> Planned:
        command = Command(name, [], tmp_path / name)
        definition = Definition("torch", "matrix_rate") if matrices else settings.definitions[name]
        return Planned(definition, config, command, matrices, None if matrices else 5e6, None)

    return figures(
        settings,
        ["model=bert_mini"],
        [
            measured(tmp_path, "ddp", planned("ddp", two), 300.0, summary='{"compilations": 3}'),
            measured(tmp_path, "ddp_x1", planned("ddp_x1", one), 250.0),
            measured(tmp_path, "hf_trainer", planned("hf_trainer", two), 200.0),
            measured(tmp_path, "matrices", planned("matrices", two, matrices=True), 3e9, "flops"),
        ],
    )


DEFINED = ["+bench.definitions.ddp={framework: torch}", "+bench.definitions.ddp_x1={framework: torch}"]


def test_ratios_are_of_the_same_round(result: dict[str, Any]) -> None:
    ddp, ddp_x1, trainer = result["contestants"]
    assert ddp["ratio"] == pytest.approx({"median": 1.5, "lower": 1.5, "upper": 1.5})
    assert trainer["ratio"] == pytest.approx({"median": 1.0, "lower": 1.0, "upper": 1.0})
    assert ddp["rounds"]["examples"] == pytest.approx([300, 150, 75, 150])
    assert ddp["examples_per_second"] == pytest.approx(150)
    assert ddp["tokens_per_second"] == pytest.approx(1500)


def test_efficiency_is_against_the_same_with_one_replica(result: dict[str, Any]) -> None:
    ddp, ddp_x1, trainer = result["contestants"]
    assert ddp["scaling_efficiency"]["median"] == pytest.approx(1.2)
    assert ddp_x1["scaling_efficiency"] is None
    assert trainer["scaling_efficiency"] is None, "a script is not Lockstep's ddp"


def test_utilisation_is_of_the_matrix_rate_of_the_same_round(result: dict[str, Any]) -> None:
    ddp = result["contestants"][0]
    assert ddp["utilisation"] == pytest.approx({"median": 0.5, "lower": 0.5, "upper": 0.5})
    assert result["matrix_flops_per_second"]["float32"]["median"] == pytest.approx(1.5e9)


def test_it_can_be_written_and_shown(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    ddp = result["contestants"][0]
    assert ddp["compilations"] == 3
    assert dict(zip(COLUMNS, cells(ddp), strict=True)) == {
        "contestant": "ddp",
        "replicas": "2",
        "precision": "float32",
        "examples/s": "150.0",
        "tokens/s": "1,500",
        "ratio": "1.50",
        "quartiles": "1.50 to 1.50",
        "scaling": "1.20",
        "utilisation": "50%",
        "peak memory": "1 MiB",
        "start-up": "2.0 s",
    }
    assert "model=bert_mini" in " ".join(sentences(result))
