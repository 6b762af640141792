"""Rehearsals without a backward pass: the optimizer's slots imply the gradients.

The rehearsal of the first step computes all gradients. If the optimizer received exactly these, and its slots imply
the same ones, then later rehearsals only compute the gradients of the loss by the outputs of the model. This is only
right if the step does nothing else with the gradients, as Keras's own `train_step`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from tf_impl.record.model_facts import Layer
from tf_impl.record.tensors import list_results


def has_keras_step(model: Layer) -> bool:
    """Check whether the class of a model does not override how Keras computes the loss or a training step."""
    methods = (getattr(type(model), name, None) for name in ("train_step", "compute_loss"))
    return all(f"{getattr(x, '__module__', '')}".partition(".")[0] in ("keras", "tf_keras") for x in methods)


class ImpliedGradients:
    """Hides forward passes of a model from the tapes of a rehearsal.

    Attributes:
        is_allowed: Whether the step does nothing with the gradients but pass them to the optimizer.
        names: The names of the variables whose gradients rehearsals do not compute.
    """

    def __init__(self) -> None:
        self.is_allowed = False
        self.names: Collection[str] = ()
        self._tapes: list[Any] = []  # those that the script has entered

    def enter_tape(self, original: Callable[..., object], tape: tf.GradientTape) -> object:
        """Enter a tape."""
        self._tapes.append(tape)
        return original(tape)

    def leave_tape(self, original: Callable[..., object], tape: tf.GradientTape, *error: object) -> object:
        """Leave a tape."""
        self._tapes = [other for other in self._tapes if other is not tape]
        return original(tape, *error)

    def forget(self) -> None:
        """Forget the tapes."""
        self._tapes.clear()

    def call(self, forward: Callable[[], object], is_hidden: bool) -> object:
        """Compute a forward pass. is_hidden: whether the tapes see nothing of it but the outputs."""
        recording = [tape for tape in self._tapes if is_hidden and tape._recording]
        with contextlib.ExitStack() as stack:
            for tape in recording:
                stack.enter_context(tape.stop_recording())
            returned = forward()
        for tape in recording:
            for output in list_results(returned):
                tape.watch(output)
        return returned
