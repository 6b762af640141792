"""Observer of the losses that a step computes by objects or functions of keras.losses."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from common.recording.record_format import LossFacts
from tf_impl.record.loss_facts import describe_function, describe_loss
from tf_impl.record.patches import Patches

Call = Callable[..., Any]
OF_TENSORFLOW = "keras._tf_keras.keras.losses"  # the module behind tf.keras.losses with Keras 3


class LossObserver:
    """Reports each loss that the script computes, but not the losses that a loss calls itself."""

    def __init__(
        self,
        see: Callable[[Callable[[], None]], None],
        take: Callable[[object, LossFacts, dict[str, object], object], None],
        compute: Callable[[Callable[[], object], object, LossFacts, dict[str, object]], object],
    ) -> None:
        """Prepare to observe.

        Args:
            see: Calls a function of the observer, and keeps its errors from a real step.
            take: Receives an object or a function, its description, its arguments other than the model's outputs, and
                what it returned.
            compute: Calls a function that computes a loss. It also receives the loss, its description and its
                arguments.
        """
        self._see, self._take, self._compute_loss = see, take, compute
        self._is_in_loss = False

    def replace_functions(self, patches: Patches, losses: ModuleType) -> None:
        """Replace the functions that compute losses. losses: the module keras.losses."""
        patches.wrap(losses.Loss, "__call__", self.call_loss)
        for module, name in _iterate_functions(losses):
            patches.wrap(module, name, self.call_function)

    def call_loss(self, original: Call, loss: object, *args: object, **kwargs: object) -> object:
        """Call a loss object."""
        arguments = {**dict(zip(("y_true", "y_pred", "sample_weight"), args)), **kwargs}  # noqa: B905
        facts = describe_loss(loss)
        if facts is None:
            return original(loss, *args, **kwargs)
        is_in_loss = self._is_in_loss
        result = self._compute(lambda: original(loss, *args, **kwargs), loss, facts, arguments)
        arguments.pop("y_pred", None)
        if not is_in_loss:
            self._see(lambda: self._take(loss, facts, arguments, result))
        return result

    def call_function(self, original: Call, *args: object, **kwargs: object) -> object:
        """Call a function of keras.losses."""
        if self._is_in_loss:
            return original(*args, **kwargs)
        arguments = {**dict(zip(inspect.signature(original).parameters, args)), **kwargs}  # noqa: B905
        facts, labels = describe_function(original, arguments), {"y_true": arguments.get("y_true")}
        result = self._compute(lambda: original(*args, **kwargs), original, facts, arguments)
        self._see(lambda: self._take(original, facts, labels, result))
        return result

    def _compute(self, compute: Call, loss: object, facts: LossFacts, arguments: dict[str, object]) -> object:
        """Compute a loss without reporting the losses that it calls."""
        is_in_loss, self._is_in_loss = self._is_in_loss, True
        try:
            return self._compute_loss(compute, loss, facts, arguments)
        finally:
            self._is_in_loss = is_in_loss


def _iterate_functions(losses: ModuleType) -> Iterator[tuple[ModuleType, str]]:
    """Yield module and name of each function of keras.losses that computes a loss."""
    for module in dict.fromkeys([losses, sys.modules.get(OF_TENSORFLOW, losses)]):
        for name, function in list(vars(module).items()):
            if isinstance(function, FunctionType) and {"y_true", "y_pred"} <= {*inspect.signature(function).parameters}:
                yield module, name
