"""Writer of the predictions of each evaluation: an observer that writes predictions-<step>.parquet."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from common.config.metrics import CLASSES
from common.errors import report_write_errors
from common.metrics.predictions import Predictions
from common.training.observer import Observer
from common.training.state import Position

if TYPE_CHECKING:
    import pyarrow as pa


class PredictionsWriter(Observer):
    """Observer that writes a row for each validation example: its id, its label, and its prediction.

    If there are several outputs, each has columns of its own, such as mask.label and mask.outputs.

    Args:
        run_dir: the run directory.
        start: the position after which training starts. The files of later steps are removed, since training writes
            them again.
    """

    def __init__(self, run_dir: Path, start: Position) -> None:
        self.run_dir = run_dir
        for path in run_dir.glob("predictions-*.parquet"):
            step = re.fullmatch(r"predictions-(\d+)", path.stem)
            if step and int(step[1]) > start.step:
                path.unlink()

    @override
    def record_predictions(self, step: int, predictions: Mapping[str, Predictions]) -> None:
        """Write the file of an evaluation. Raise UserError if the disk is full."""
        import pyarrow as pa  # imported here because few runs need it
        import pyarrow.parquet as parquet

        columns = {"id": next(iter(predictions.values())).ids}
        for output, values in predictions.items():
            columns |= _make_columns(f"{output}." if output else "", values)
        table = pa.table(columns)
        path = self.run_dir / f"predictions-{step:08}.parquet"
        partial = path.with_suffix(".partial")
        with report_write_errors(path):
            parquet.write_table(table, partial)
            partial.replace(path)


def _make_columns(prefix: str, predictions: Predictions) -> "dict[str, pa.Array]":
    """Return the columns of an output: its labels, and the predicted classes or the outputs of the model."""
    name, values = "outputs", predictions.outputs
    if predictions.kind == CLASSES:
        name, values = "classes", values.astype(np.int64)
    return {f"{prefix}label": _to_column(predictions.labels), f"{prefix}{name}": _to_column(values)}


def _to_column(values: np.ndarray) -> "pa.Array":
    """Return a column of numbers, or of flat lists of numbers if an example has several."""
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    flat = values.reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
