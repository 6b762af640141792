"""A call of a layer that counts as one operation, or as two: the layer and its activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_impl.record.layer_observer import ACTIVATED_KINDS
from tf_impl.record.model_facts import Layer, get_kind
from tf_impl.record.tensors import is_eager


class TracedLayer:
    """Context of a call of a layer. The layer ends when its activation begins, if it has one."""

    def __init__(
        self, layer: Layer, end: Callable[[object, bool], None], activate: Callable[[Any, object], object]
    ) -> None:
        """Prepare to call.

        Args:
            layer: The layer.
            end: Receives what the layer returned, and whether that includes its activation.
            activate: Calls the activation with what it receives.
        """
        self._end, self._activate = end, activate
        self._attributes: dict[str, Any] = layer.__dict__  # Keras does not notice the replacement
        self._activation = self._attributes.get("activation") if get_kind(layer) in ACTIVATED_KINDS else None
        self._has_ended = False

    def __enter__(self) -> TracedLayer:
        if self._activation is not None:
            self._attributes["activation"] = self
        return self

    def __exit__(self, *_: object) -> None:
        if self._activation is not None:
            self._attributes["activation"] = self._activation

    def end(self, returned: object) -> None:
        """End the layer, unless its activation did."""
        if not self._has_ended:
            self._end(returned, True)

    def __call__(self, inputs: object) -> object:
        """Call the activation."""
        assert self._activation is not None
        if self._has_ended or not is_eager(inputs):  # called again for the arrays of another record
            return self._activation(inputs)
        self._has_ended = True
        self._end(inputs, False)
        return self._activate(self._activation, inputs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of the activation, such as its name."""
        return getattr(self.__dict__["_activation"], name)
