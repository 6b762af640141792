"""Gradients that a tape returns and an optimizer receives, as arrays by the names of the variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from common.recording.gradient_changes import find_changes
from tf_impl.record.gradients import add_gradients, clip_rows
from tf_impl.record.model_facts import Layer, name_by_identity, name_variables
from tf_impl.record.optimizer_facts import Optimizer, unwrap_optimizer
from tf_impl.record.step import ModelCall, Step
from tf_impl.record.tensors import list_results, to_array, view_array


class SourcesAndResults(NamedTuple):
    """The sources of a script's gradient, and what calls of the model returned; or the gradients by both."""

    sources: Any
    results: Any


def differentiate_results(
    original: Callable[..., Any], tape: object, arguments: dict[str, Any], calls: Sequence[ModelCall]
) -> object:
    """Compute gradients that are none by variables of the model for the script.

    Gradients by tensors, as in a gradient penalty, count as results of the calls on which the target depends.

    Args:
        original: Computes the gradients.
        tape: The tape.
        arguments: The arguments of the script.
        calls: The calls of the model in this micro-batch.
    """
    if not calls or any(not isinstance(source, tf.Tensor) for source in tf.nest.flatten(arguments["sources"])):
        return original(tape, **arguments)
    sources = SourcesAndResults(arguments["sources"], [call.results for call in calls])
    gradients = original(tape, **{**arguments, "sources": sources})
    for call, of_call in zip(calls, gradients.results):  # noqa: B905
        call.results += list_results(gradients.sources) if any(x is not None for x in of_call) else []
    return gradients.sources


class TapeGradients:
    """Names the gradients of a model's variables. A tensor has one array, so that a record stores it once.

    Attributes:
        clipped_rows: The gradients of the last update that Keras clips in another way than the sums of their rows.
    """

    def __init__(self, model: Layer, optimizer: Optimizer) -> None:
        """Prepare to name gradients.

        Args:
            model: The model.
            optimizer: The optimizer.
        """
        self._model, self._optimizer = model, optimizer
        self.clipped_rows: dict[str, np.ndarray] = {}
        self._arrays: dict[int, tuple[object, np.ndarray]] = {}  # by the identity of the tensor
        # Clipped tensors with those before clipping, by the identity of the clipped one
        self._unclipped: dict[int, tuple[object, object]] = {}
        self._foreign: dict[int, object] = {}  # gradients of other models, by identity

    def clear(self) -> None:
        """Forget the tensors."""
        self._arrays.clear()
        self._unclipped.clear()
        self._foreign.clear()

    def has_variables(self, sources: object) -> bool:
        """Check whether variables of the model are among the sources of a gradient."""
        names = name_by_identity(name_variables(self._model))
        return any(id(source) in names for source in tf.nest.flatten(sources))

    def name(self, pairs: Iterable[tuple[object, object]], scale: float | None) -> dict[str, Any]:
        """Return the gradients of the model's variables as arrays.

        Args:
            pairs: Gradients with their variables.
            scale: The factor of a loss scale, by which the gradients are divided.
        """
        names = name_by_identity(name_variables(self._model))
        return {
            names[id(variable)]: self._view(gradient, scale or 1.0)
            for gradient, variable in pairs
            if gradient is not None and id(variable) in names
        }

    def take_foreign(self, gradients: Iterable[object]) -> None:
        """Remember gradients of another model."""
        self._foreign.update({id(gradient): gradient for gradient in gradients if gradient is not None})

    def take_clipped(
        self, step: Step | None, clipped: Sequence[object], gradients: Sequence[object], max_norm: object
    ) -> None:
        """Remember what the script clips, and the norm to which it does so, unless it clips those of another model."""
        if any(id(gradient) in self._foreign for gradient in gradients):
            return
        if step is not None:
            step.max_norm = float(to_array(max_norm))
        self._unclipped.update({id(x): (x, gradient) for x, gradient in zip(clipped, gradients)})  # noqa: B905

    def _name_unclipped(self, pairs: Sequence[tuple[object, object]], scale: float | None) -> dict[str, Any]:
        """Return the gradients before clipping, as `name` does; empty if the script clips none of them."""
        if not any(id(gradient) in self._unclipped for gradient, _ in pairs):
            return {}
        return self.name([(self._unclipped.get(id(x), (x, x))[1], variable) for x, variable in pairs], scale)

    def take_update(self, step: Step, replica: int, pairs: Sequence[tuple[object, object]]) -> None:
        """Give a step the gradients that a replica passes to the optimizer, and what the script did to them."""
        received = self.name(pairs, step.loss_scale)
        step.take_update(replica, received, self._name_unclipped(pairs, step.loss_scale))
        step.changes = None
        self.clipped_rows = {}
        if step.updates == 1 and tf.distribute.get_strategy().num_replicas_in_sync == 1:
            self.clipped_rows = self._clip_rows(pairs) if step.loss_scale is None else {}
            variables, returned = name_variables(self._model), add_gradients(step.list_tape_gradients())
            step.changes = find_changes(returned, received, lambda name: view_array(variables[name]))

    def _clip_rows(self, pairs: Sequence[tuple[object, object]]) -> dict[str, np.ndarray]:
        names = name_by_identity(name_variables(self._model))
        named = {names[id(x)]: gradient for gradient, x in pairs if gradient is not None and id(x) in names}
        return clip_rows(self._optimizer, named)

    def replace(self, gradients: object, sources: object, names: Collection[str]) -> object:
        """Return gradients with zeros for some variables of the model.

        Args:
            gradients: The gradients.
            sources: Their variables.
            names: The names of the variables whose gradients become zeros.
        """
        known = name_by_identity(name_variables(self._model))

        def choose(source: Any, gradient: object) -> object:  # noqa: ANN401  a tf.Variable or a keras.Variable
            return tf.zeros(source.shape, source.dtype) if known.get(id(source)) in names else gradient

        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients))  # noqa: B905
        return tf.nest.pack_sequence_as(sources, [choose(source, gradient) for source, gradient in pairs])

    def _view(self, gradient: object, scale: float) -> np.ndarray:
        if id(gradient) not in self._arrays:
            array = view_array(gradient)
            self._arrays[id(gradient)] = gradient, array / scale if scale != 1.0 else array
        return self._arrays[id(gradient)][1]

    def pair(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[object, object]]:
        """Return the gradients that a method of the optimizer receives, with their variables."""
        if method == "apply_gradients":
            return list(args[0] if args else kwargs["grads_and_vars"])
        gradients = list(args[0] if args else kwargs["grads"])
        variables = args[1] if len(args) > 1 else kwargs.get("trainable_variables")
        return list(zip(gradients, variables or unwrap_optimizer(self._optimizer)._trainable_variables))  # noqa: B905
