"""What the loop reports while it trains. The recorder, the checkpoints and the progress display listen to it."""

from typing import Any, Protocol

from common.training.state import Position, State

Row = dict[str, Any]


class Observer(Protocol):
    """Gets the results of training. Only the chief has observers."""

    def steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """A block of updates: a row of metrics.jsonl and, where the strategy counts them, of traffic.jsonl for each.

        speed: examples per second over these rows.
        """

    def evaluation(self, row: Row) -> None:
        """An evaluation: a row of evals.jsonl."""

    def save(self, state: State, position: Position) -> None:
        """A checkpoint is due here."""
