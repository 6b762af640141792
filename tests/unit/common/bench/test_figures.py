"""Figures of a benchmark: ratios within a round, scaling efficiency, and utilisation."""

import json
from typing import cast

import pytest

from common.bench.result import BenchResult, ContestantResult
from common.bench.result_tables import COLUMNS, build_row, build_sections


@pytest.mark.slow
def test_ratios_compare_speeds_of_the_same_round(result: BenchResult) -> None:
    ddp, _, trainer = result["contestants"]
    assert ddp["ratio"] == pytest.approx({"median": 1.5, "lower": 1.5, "upper": 1.5})
    assert trainer["ratio"] == pytest.approx({"median": 1.0, "lower": 1.0, "upper": 1.0})
    assert ddp["rounds"]["examples"] == pytest.approx([300, 150, 75, 150])
    assert ddp["examples_per_second"] == pytest.approx(150)
    assert ddp["tokens_per_second"] == pytest.approx(1500)


def test_scaling_efficiency_compares_with_one_replica(result: BenchResult) -> None:
    ddp, ddp_x1, trainer = result["contestants"]
    assert ddp["scaling_efficiency"] is not None
    assert ddp["scaling_efficiency"]["median"] == pytest.approx(1.2)
    assert ddp_x1["scaling_efficiency"] is None
    assert trainer["scaling_efficiency"] is None, "the script has no contestant with one replica"


def test_utilisation_compares_with_the_matrix_rate_of_the_same_round(result: BenchResult) -> None:
    ddp = result["contestants"][0]
    assert ddp["utilisation"] == pytest.approx({"median": 0.5, "lower": 0.5, "upper": 0.5})
    assert result["matrix_flops_per_second"]["float32"]["median"] == pytest.approx(1.5e9)


def test_the_result_is_json_and_has_table_rows(result: BenchResult) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    ddp = result["contestants"][0]
    assert ddp["compilations"] == 3
    assert dict(zip(COLUMNS, build_row(ddp), strict=True)) == {
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
    mixed = build_row(cast(ContestantResult, {**ddp, "matmul_precision": "bfloat16"}))
    assert mixed[COLUMNS.index("precision")] == "float32, products bfloat16"
    assert "model=bert_mini" in " ".join(build_sections(result)[0].sentences)
