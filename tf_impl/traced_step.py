"""Tracing of a user's model and loss function as in a compiled step, which may not know the sizes of all axes."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from common.errors import UserError, describe_error
from common.map.input_specs import InputSpec
from tf_impl.task import PerExample


def trace_model(
    factory: str,
    compute: Callable[[dict[str, tf.Tensor], bool], object],
    inputs: Mapping[str, InputSpec],
    tensors: Mapping[str, tf.Tensor],
) -> bool:
    """Trace a model in both modes. Return whether it draws random numbers in training mode.

    Args:
        factory: The config key and the factory, for errors.
        compute: The model as a function of (inputs, training).
        inputs: The inputs by name.
        tensors: Values of the inputs.

    Raises:
        UserError: The model fails, or needs sizes that a compiled step does not know.
    """
    specs = {
        name: tf.TensorSpec(
            [None if axis in inputs[name].open_axes else size for axis, size in enumerate(tensor.shape)], tensor.dtype
        )
        for name, tensor in tensors.items()
    }
    for training in (False, True):
        try:
            graph = tf.function(compute).get_concrete_function(specs, training).graph
        except Exception as error:
            open_axes = [f"{name}.shape[{axis}]" for name, spec in inputs.items() for axis in spec.open_axes]
            reason = f"; the step does not know the size {open_axes[0]}: use keras.ops.shape" if open_axes else ""
            raise UserError(
                f"{factory}: its forward pass in a compiled step raised {describe_error(error)}{reason}"
            ) from error
    return _draws_numbers(graph)


def has_random_operations(
    compute: Callable[[dict[str, tf.Tensor], bool], object], tensors: Mapping[str, tf.Tensor]
) -> bool:
    """Check whether a model draws random numbers in training mode.

    Args:
        compute: The model as a function of (inputs, training).
        tensors: Values of the inputs.
    """
    specs = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    return _draws_numbers(tf.function(compute).get_concrete_function(specs, True).graph)


def _draws_numbers(graph: tf.Graph) -> bool:
    """Check whether the operations of a graph, or of the functions that it calls, draw random numbers."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return any("Random" in node.op or "Multinomial" in node.op for node in nodes)


def compile_losses(losses: PerExample, any_batch_size: bool) -> PerExample:
    """Return a loss function that is traced once for each dtype of outputs.

    any_batch_size: whether it is traced for any number of examples, not only for that of its arguments.
    """
    function = tf.function(losses)

    def compute_losses(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        count = None if any_batch_size else len(labels)
        specs = [tf.TensorSpec([count, *tensor.shape[1:]], tensor.dtype) for tensor in (outputs, labels)]
        return function.get_concrete_function(*specs)(outputs, labels)

    return compute_losses
