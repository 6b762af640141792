"""Interface of the observers to which the training loop passes its results, such as the recorder and the display."""

from collections.abc import Mapping

from common.metrics.predictions import Predictions
from common.training.rows import Row
from common.training.state import Position, State


class Observer:
    """Receives the results of training. Only the chief (rank 0) has observers. Each method does nothing by default."""

    def record_steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Record a block of updates.

        Args:
            rows: rows of metrics.jsonl, one for each update.
            traffic: rows of traffic.jsonl; empty if the strategy does not count bytes.
            speed: examples per second over these updates.
        """

    def record_evaluation(self, row: Row) -> None:
        """Record an evaluation, a row of evals.jsonl."""

    def record_predictions(self, step: int, predictions: Mapping[str, Predictions]) -> None:
        """Record the predictions of the evaluation after a step, if train.predictions is set.

        Args:
            step: the step.
            predictions: The predictions by output; the only output of a task has the name "".
        """

    def save(self, state: State, position: Position) -> None:
        """Save a checkpoint, or flush the records that must not be lost if the run resumes from this checkpoint."""
