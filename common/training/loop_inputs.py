"""Interface of the inputs of a run, as the training loop reads them."""

from collections.abc import Sequence
from typing import Protocol

from common.data.cache import Cache
from common.models.task_outputs import OutputLayout
from common.training.state import Position


class LoopInputs(Protocol):
    """Interface of the inputs of a run, as `common.run.inputs.PreparedInputs` has them."""

    @property
    def cache(self) -> Cache:
        """The training and validation examples."""

    @property
    def start(self) -> Position:
        """The position after which training starts: a checkpoint's, or zero."""

    @property
    def output_layouts(self) -> Sequence[OutputLayout]:
        """The layouts of the outputs of the model, if the task has several."""
