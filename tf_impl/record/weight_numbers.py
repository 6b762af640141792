"""Numbers of the values of variables among the tensors of a trace of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from common.recording.operation_observer import OperationObserver
from tf_impl.record.model_facts import Layer


class WeightNumbers:
    """Gives a variable one number until it is assigned. The handle of the variable stands for its value."""

    def __init__(self, observer: OperationObserver, name_variables: Callable[[], Mapping[str, Any]]) -> None:
        """Prepare to number.

        Args:
            observer: The observer of operations.
            name_variables: Returns the variables of the model by name.
        """
        self._observer, self._name_variables = observer, name_variables
        self._known: dict[int, object] = {}  # the handles of the variables that have numbers, by identity
        self._names: dict[int, str | None] = {}  # names of variables by the identity of their handles

    def add_layer(self, layer: Layer) -> list[object]:
        """Give the variables of a layer numbers, except the states of random generators. Return their handles."""
        variables = [variable for variable in layer.weights if "seed_generator_state" not in variable.name]
        handles = [(_get_handle(variable), variable.dtype) for variable in variables]
        created = [(handle, dtype) for handle, dtype in handles if handle is not None]
        for handle, dtype in created:
            self.add(handle, dtype)
        return [handle for handle, _ in created]

    def add(self, handle: object, dtype: object, value: object = None) -> None:
        """Give a variable the number of its value, unless it has one.

        Args:
            handle: The handle of the variable.
            dtype: Its type.
            value: The value; None if it is still to be read.
        """
        if id(handle) in self._known:
            return
        if value is None:
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(dtype))
        self._observer.share_number(handle, value)
        self._known[id(handle)] = handle
        if (name := self._find_name(handle)) is not None:
            self._observer.name_tensor(f"weight/{name}", handle)

    def forget(self, handles: Sequence[object]) -> None:
        """Forget the numbers of variables that were assigned."""
        for handle in handles:
            self._known.pop(id(handle), None)

    def _find_name(self, handle: object) -> str | None:
        if id(handle) not in self._names:
            self._names[id(handle)] = None  # a variable of another model
            self._names.update({id(_get_handle(x)): name for name, x in self._name_variables().items()})
        return self._names[id(handle)]


def _get_handle(variable: Any) -> object:  # noqa: ANN401  a tf.Variable or a keras.Variable
    """Return the handle of a variable; None if Keras has not created it yet."""
    return getattr(getattr(variable, "_value", variable), "handle", None)
