"""Tracing of a step that creates the variables of a model, before it is rehearsed.

A script that traces its step creates the variables for batches of unknown size, and may draw initial values in each
trace. A rehearsal would create them eagerly: for the size of one batch, and with other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_impl.record.patches import Patches

FUNCTION = type(tf.function(lambda: None))


class _TracedError(Exception):
    """Ends a call of the train function when it is traced."""


def trace_train_function(original: Callable[[Any], Any], iterator: Iterator[object]) -> None:
    """Trace the train function for an iterator without running it, so that it creates the variables of the model.

    Args:
        original: The train function of a Keras model, which calls a tf.function.
        iterator: An iterator over one batch.
    """
    patches = Patches()

    def trace(function: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  a tf.function and what it receives
        patches.restore()
        function.get_concrete_function(*args, **kwargs)
        raise _TracedError

    patches.replace(FUNCTION, "__call__", trace)
    try:
        original(iterator)
    except _TracedError:
        pass
    finally:
        patches.restore()
