from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from common.metrics.predictions import Predictions
from common.run.predictions_writer import PredictionsWriter
from common.training.state import Position


@pytest.mark.parametrize(
    ("predictions", "name", "values"),
    [
        (Predictions("outputs", np.arange(2), np.array([1, 0]), np.array([[0.1, 0.2], [1, 2]])), "outputs", [0.1, 0.2]),
        (Predictions("outputs", np.arange(2), np.array([0.5, 1.5]), np.array([0.1, 0.2])), "outputs", 0.1),
        (
            Predictions("classes", np.arange(2), np.array([[1, -1], [1, 2]]), np.array([[3.0, 0], [1, 2]])),
            "classes",
            [3, 0],
        ),
    ],
)
def test_a_row_for_each_example(run_dir: Path, predictions: Predictions, name: str, values: object) -> None:
    PredictionsWriter(run_dir, Position()).record_predictions(30, {"": predictions})
    table = parquet.read_table(run_dir / "predictions-00000030.parquet")
    assert table.column_names == ["id", "label", name]
    assert table["id"].to_pylist() == [0, 1]
    assert table["label"].to_pylist() == predictions.labels.tolist()
    assert table[name].to_pylist() == predictions.outputs.tolist() and table[name][0].as_py() == values
    assert [path.name for path in run_dir.iterdir()] == ["predictions-00000030.parquet"]


def test_each_of_several_outputs_has_columns(run_dir: Path) -> None:
    mask = Predictions("outputs", np.arange(2), np.zeros((2, 2, 2), np.int32), np.ones((2, 8)))
    age = Predictions("outputs", np.arange(2), np.array([0.5, 1.5]), np.array([0.1, 0.2]))
    PredictionsWriter(run_dir, Position()).record_predictions(30, {"mask": mask, "age": age})
    table = parquet.read_table(run_dir / "predictions-00000030.parquet")
    assert table.column_names == ["id", "mask.label", "mask.outputs", "age.label", "age.outputs"]
    assert table["mask.label"].to_pylist() == [[0] * 4] * 2 and table["mask.outputs"].to_pylist() == [[1.0] * 8] * 2
    assert table["age.outputs"].to_pylist() == [0.1, 0.2]


def test_files_of_later_steps_are_removed(run_dir: Path) -> None:
    names = ["predictions-00000010.parquet", "predictions-00000020.parquet", "predictions-mine.parquet"]
    for name in names:
        (run_dir / name).touch()
    PredictionsWriter(run_dir, Position(step=10))
    assert sorted(path.name for path in run_dir.iterdir()) == [names[0], names[2]]
