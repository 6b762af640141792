"""Observer of the losses that a step computes by objects or functions of keras.losses."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from common.recording.record_format import LossFacts
from tf_impl.record.loss_facts import describe_function, describe_loss

Call = Callable[..., Any]
OF_TENSORFLOW = "keras._tf_keras.keras.losses"  # the module that tf.keras.losses is with Keras 3


class LossObserver:
    """Reports each loss that the script computes. A loss that computes with other losses is one loss."""

    def __init__(
        self, see: Callable[[Callable[[], None]], None], take: Callable[[object, LossFacts, dict], None]
    ) -> None:
        """Prepare to observe.

        Args:
            see: Calls a function of the observer, and keeps its errors from a real step.
            take: Receives the loss, its description, and its arguments other than the outputs of the model.
        """
        self._see, self._take = see, take
        self._is_in_loss = False

    def call_loss(self, original: Call, loss: object, *args: object, **kwargs: object) -> object:
        """Call a loss object."""
        arguments = {**dict(zip(("y_true", "y_pred", "sample_weight"), args)), **kwargs}  # noqa: B905
        arguments.pop("y_pred", None)
        facts = describe_loss(loss)
        if facts is None:
            return original(loss, *args, **kwargs)
        return self._report(lambda: original(loss, *args, **kwargs), loss, facts, arguments)

    def call_function(self, original: Call, *args: object, **kwargs: object) -> object:
        """Call a function of keras.losses."""
        arguments = {**dict(zip(inspect.signature(original).parameters, args)), **kwargs}  # noqa: B905
        facts = describe_function(original, arguments)
        labels = {"y_true": arguments.get("y_true")}
        return self._report(lambda: original(*args, **kwargs), original, facts, labels)

    def _report(self, compute: Call, loss: object, facts: LossFacts, arguments: dict) -> object:
        if self._is_in_loss:
            return compute()
        self._see(lambda: self._take(loss, facts, arguments))
        self._is_in_loss = True
        try:
            return compute()
        finally:
            self._is_in_loss = False


def iterate_functions(losses: ModuleType) -> Iterator[tuple[ModuleType, str]]:
    """Yield module and name of each function of keras.losses that computes a loss."""
    for module in dict.fromkeys([losses, sys.modules.get(OF_TENSORFLOW, losses)]):
        for name, function in list(vars(module).items()):
            if isinstance(function, FunctionType) and {"y_true", "y_pred"} <= {*inspect.signature(function).parameters}:
                yield module, name
