"""A rehearsal: an eager computation of a training step beside the real one, whose effects are undone."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.distribute.input_lib import DistributedIteratorBase
from tensorflow.python.eager import context
from tensorflow.python.ops import nn_ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable

from tf_impl.record import notes
from tf_impl.record.layer_attributes import keep_attributes
from tf_impl.record.model_facts import Layer
from tf_impl.record.patches import Patches
from tf_impl.record.tensors import list_step_results, to_array

ASSIGNMENTS = [
    name
    for name in dir(BaseResourceVariable)
    if name.startswith(("assign", "scatter_", "batch_scatter_", "_strided_slice_assign"))
]
ITERATORS = (OwnedIterator, DistributedIteratorBase)
RANDOM_FUNCTIONS = [(tf.random, f"stateless_{name}") for name in ("uniform", "normal", "truncated_normal", "gamma")]
DROPOUT_FUNCTION = (tf.nn.experimental, "stateless_dropout")
SEED_OF_REHEARSAL = 34  # for eager random functions that take no seed; any number that the script does not use


class NotVisibleError(Exception):
    """A step cannot be rehearsed. The message is a sentence for the record."""


class Rehearsal:
    """Context in which functions are computed eagerly, and every effect on the training is undone.

    Variables and plain attributes of layers get their values back, random generators their states, and nothing is
    printed. A step that would take a
    batch from an iterator of the script raises `NotVisibleError` before the iterator moves.
    """

    def __init__(
        self,
        models: Collection[Layer],
        creates_variables: bool,
        compiled: CompiledDraws | None,
        iterators: Collection[object] = (),
    ) -> None:
        """Prepare a rehearsal.

        Args:
            models: The models. Their layers get plain attributes back.
            creates_variables: Whether the model creates its variables in this rehearsal. They keep their initial
                values, and the random generators keep the states that the initializers left.
            compiled: Random functions as XLA compiles them, if it compiles the real step: it draws other random numbers
                from the same seed.
            iterators: Iterators that the step may use.
        """
        self._models = models
        self._creates_variables, self._compiled = creates_variables, compiled
        self._iterators = {id(iterator) for iterator in iterators}
        self._patches = Patches()
        self._assigned: dict[int, tuple[tf.Variable, tf.Tensor]] = {}  # with the values before
        self._stack = contextlib.ExitStack()
        self._is_reading = False  # whether an allowed iterator reads from the iterators that it consists of

    def __enter__(self) -> None:
        self._stack.callback(keep_attributes(self._models).restore)
        self._keep_random_states()
        self._patch_methods()
        was_eager = tf.config.functions_run_eagerly()
        self._stack.callback(tf.config.run_functions_eagerly, was_eager)
        tf.config.run_functions_eagerly(True)
        self._stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        self._stack.enter_context(tf.summary.record_if(False))

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._patches.restore()
        for variable, value in self._assigned.values():
            variable.assign(value)

    def _keep_random_states(self) -> None:
        if self._creates_variables:
            self._patches.replace(nn_ops, "_dropout", _draw_apart(nn_ops._dropout))
            return
        self._stack.callback(random.setstate, random.getstate())
        self._stack.callback(np.random.set_state, np.random.get_state())
        # Another seed makes another operation: repeating the script's own operation would advance its kernel's state.
        self._stack.enter_context(_use_other_seeds())

    def _patch_methods(self) -> None:
        for kind in (BaseResourceVariable, ResourceVariable):
            for name in set(ASSIGNMENTS) & set(vars(kind)):
                self._patches.replace(kind, name, self._keep_value(getattr(kind, name), lambda variable: variable))
        generator = tf.random.Generator
        self._patches.replace(generator, "skip", self._keep_value(generator.skip, lambda source: source.state))
        for iterator_class in ITERATORS:
            for name in ("__next__", "get_next", "get_next_as_optional"):
                self._patches.replace(iterator_class, name, self._guard_iterator(getattr(iterator_class, name)))
        self._patches.replace(tf, "print", lambda *args, **kwargs: None)
        self._patches.wrap(tf.nn, "convolution", _convolve_groups)
        # XLA does not compile initializers, which use the same functions
        functions = [DROPOUT_FUNCTION, *([] if self._creates_variables else RANDOM_FUNCTIONS)]
        compiled = self._compiled
        for owner, name in functions if compiled is not None else ():
            assert compiled is not None
            self._patches.replace(owner, name, compiled.wrap(getattr(owner, name)))

    def _keep_value(
        self, method: Callable[..., object], find_variable: Callable[[Any], tf.Variable]
    ) -> Callable[..., object]:
        """Return `method` such that the rehearsal saves the value of a variable before its first change."""

        def change(owner: object, *args: object, **kwargs: object) -> object:
            variable = find_variable(owner)
            for component in getattr(variable, "values", [variable]):  # of a variable of several replicas
                if id(component) not in self._assigned:
                    self._assigned[id(component)] = (component, component.read_value())
            return method(owner, *args, **kwargs)

        return change

    def _guard_iterator(self, method: Callable[..., object]) -> Callable[..., object]:
        def take(iterator: object, *args: object, **kwargs: object) -> object:
            if self._is_reading:
                return method(iterator, *args, **kwargs)
            if id(iterator) not in self._iterators:
                raise NotVisibleError(
                    "The step takes its batch from an iterator, so that its tensors cannot be seen: "
                    "call the tf.function with the batch, as in train_step(next(iterator))."
                )
            self._is_reading = True
            try:
                return method(iterator, *args, **kwargs)
            finally:
                self._is_reading = False

        return take


def _convolve_groups(
    convolve: Callable[..., tf.Tensor], input: tf.Tensor, filters: tf.Tensor, *args: object, **kwargs: object
) -> tf.Tensor:
    """Convolve each group of channels apart: without XLA, TensorFlow has no gradient of groups on a CPU."""
    axis = 1 if str(kwargs.get("data_format")).startswith("NC") else -1
    groups = (input.shape[axis] or 0) // (filters.shape[-2] or 1)
    if groups < 2:
        return convolve(input, filters, *args, **kwargs)
    parts = tf.split(input, groups, axis), tf.split(filters, groups, -1)
    return tf.concat([convolve(x, kernel, *args, **kwargs) for x, kernel in zip(*parts)], axis)  # noqa: B905


def refuse_parts() -> None:
    """Raise NotVisibleError: an eager step cannot be rehearsed if it calls layers instead of the model."""
    raise NotVisibleError(notes.EAGER_PARTS)


def try_rehearsal(
    rehearsal: Rehearsal, function: Callable[[], object], step: int
) -> tuple[list[np.ndarray] | None, str]:
    """Rehearse a step.

    Args:
        rehearsal: The context.
        function: Computes the step.
        step: The number of the step.

    Returns:
        The floating-point results of the step, or None and a sentence that says why it cannot be rehearsed.
    """
    try:
        with rehearsal:
            result = function()
            return [to_array(tensor) for tensor in list_step_results(result)], ""
    except NotVisibleError as error:
        return None, str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return None, notes.NO_REHEARSAL.format(step, reason)


@contextlib.contextmanager
def _use_other_seeds() -> Iterator[None]:
    """Draw seeds for eager random functions without a seed from a generator of our own, not from the script's."""
    eager = context.context()
    eager.ensure_initialized()
    generator = getattr(eager, "_rng", None)
    eager._rng = random.Random(SEED_OF_REHEARSAL)
    try:
        yield
    finally:
        eager._rng = generator


def _draw_apart(dropout: Callable[..., object]) -> Callable[..., object]:
    """Return TensorFlow's dropout such that it draws no seed from the script's generator, as in Keras 2 it would."""

    def draw(*args: object, **kwargs: object) -> object:
        with _use_other_seeds():
            return dropout(*args, **kwargs)

    return draw


class CompiledDraws:
    """Random functions that XLA compiled, so that a rehearsal draws the numbers of a step that XLA compiles.

    Each is compiled once for its arguments other than tensors: compiling takes longer than the step.
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[object, ...], Callable[..., object]] = {}

    def wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a random function that draws the same numbers as in a step that XLA compiles."""

        def draw(*args: object, **kwargs: object) -> object:
            arguments: list[tuple[object, object]] = [*enumerate(args), *kwargs.items()]
            tensors = {f"{name}": value for name, value in arguments if isinstance(value, tf.Tensor)}
            others = {name: value for name, value in arguments if not isinstance(value, tf.Tensor)}
            key = (function.__name__, len(args), *kwargs, repr(others))
            if key not in self._functions:
                self._functions[key] = _compile(function, len(args), list(kwargs), others)
            tf.config.run_functions_eagerly(False)
            try:
                return self._functions[key](tensors)
            finally:
                tf.config.run_functions_eagerly(True)

        return draw


def _compile(
    function: Callable[..., object], count: int, names: list[str], others: Mapping[object, object]
) -> Callable[..., object]:
    """Compile a function of the tensors among its arguments.

    Args:
        function: The function.
        count: The number of its positional arguments.
        names: The names of its keyword arguments.
        others: The arguments that are no tensors, by position or name.
    """

    def compute(tensors: dict[str, tf.Tensor]) -> object:
        values = {name: others[name] if name in others else tensors[f"{name}"] for name in (*range(count), *names)}
        return function(*(values[position] for position in range(count)), **{name: values[name] for name in names})

    compiled: Callable[..., object] = tf.function(compute, jit_compile=True, autograph=False)
    return compiled
