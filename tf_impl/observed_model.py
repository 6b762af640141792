"""The model of a run, for common.diagnose: the arrays of every layer, the losses and the gradients of a step.

common.diagnose compares two runs, A and B, and starts a process for each. The process builds an ObservedModel and calls
the methods whose names it receives. All weights and gradients are numpy arrays with PyTorch's names and shapes.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.config.compose import load_config
from common.config.saved_config import CONFIG
from common.data.batches import Arrays
from common.data.transforms.trace import Trace, trace_transforms
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import perturb_calls
from common.diagnose.observation import Observation, PerturbedObservation, measure_perturbation
from common.map.description import RecordedCall
from common.map.keras_paths import layers_by_path
from common.run.inputs import open_inputs
from common.training.planned_batches import find_batch
from tf_impl.batches import to_tensors
from tf_impl.device import select_replica_devices
from tf_impl.forward_trace import ForwardTrace
from tf_impl.models import build_model
from tf_impl.models.weights import load_weights
from tf_impl.step import MicroBatch, backward, compute_outputs, sum_losses
from tf_impl.task import build_task_functions


class ObservedModel:
    """The model and the task of a prepared run directory."""

    def __init__(self, run_dir: str) -> None:
        """Build the model of a run directory."""
        tf.get_logger().setLevel("ERROR")  # no warnings of functions that are traced for several shapes
        self.config = config = load_config(Path(run_dir) / CONFIG)
        self.inputs = open_inputs(config, Path(run_dir))
        select_replica_devices(1, config.train.device)
        self.model = build_model(config, self.inputs.initial)
        self.task = build_task_functions(config.task, self.inputs.initial.hf_config)
        self.layer_paths = {
            name: parameter.variable.path.rpartition("/")[0]
            for parameter in self.model.named_parameters
            for name in parameter.names
        }

    def layers(self) -> dict[str, str]:
        """Return the path of the layer of each parameter and moving statistic, by the parameter's name."""
        return self.layer_paths

    def classes(self) -> dict[str, str]:
        """Return the class of each layer with its module, such as keras.src.layers.core.dense.Dense, by the path."""
        layers = layers_by_path(self.model)
        return {path: f"{type(layer).__module__}.{type(layer).__name__}" for path, layer in layers.items()}

    def transforms(self, step: int) -> Trace:
        """Return the examples of a global batch before the transforms of the data, and after each of them."""
        return trace_transforms(find_batch(self.config, self.inputs.cache.train, step))

    def compute(
        self,
        weights: Mapping[str, np.ndarray],
        shard: Sequence[Arrays],
        weight: float,
        training: bool,
        paths: Collection[str],
        replacements: Mapping[str, RecordedCall] | None = None,
    ) -> Observation:
        """Compute a shard.

        Args:
            weights: The weights to set first, by name.
            shard: The micro-batches.
            weight: The total weight of the global batch: the divisor of the summed losses.
            training: Whether the model is in training mode.
            paths: The paths of the layers whose calls are returned.
            replacements: Inputs and outputs that replace those of layers in the first micro-batch, by the layer's path
                in this model: the calls of the other model's layers, or of this model with noise. With replacements, no
                gradients are computed.
        """
        load_weights(self.model, dict(weights))
        variables = [variable.value for variable in self.model.trainable_variables]
        losses, outputs, calls, unflattened_shapes, reshaped_shapes, counts = [], [], {}, {}, {}, {}
        summed = [np.zeros(variable.shape, variable.dtype.as_numpy_dtype) for variable in variables]  # gradients
        for index, micro_batch in enumerate(to_tensors(list(shard))):
            with tf.GradientTape() as tape:
                if index == 0:
                    with ForwardTrace(self.model, replacements, paths) as trace:
                        batch_outputs, batch_losses = self._forward(micro_batch, training)
                    calls, unflattened_shapes = trace.calls, trace.unflattened_shapes
                    reshaped_shapes, counts = trace.reshaped_shapes, dict(trace.counts)
                else:
                    batch_outputs, batch_losses = self._forward(micro_batch, training)
                loss = sum_losses(self.task, batch_outputs, micro_batch) / weight
            if replacements is None:
                gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
                arrays = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
                summed = [a + b for a, b in zip(summed, arrays, strict=True)]
            losses.append(batch_losses.numpy())
            outputs.append(batch_outputs.numpy())
        self.observation = Observation(
            outputs, losses, calls, unflattened_shapes, self._convert_to_torch(summed), reshaped_shapes, counts
        )
        return self.observation

    def compute_perturbed(
        self,
        weights: Mapping[str, np.ndarray],
        shard: Sequence[Arrays],
        weight: float,
        training: bool,
        layers: Sequence[LayerMatch] | None = None,
    ) -> PerturbedObservation:
        """Compute the shard of the last `compute` on slightly perturbed weights, and measure the differences.

        Args:
            weights: The perturbed weights to set first, by name.
            shard: As in `compute`.
            weight: As in `compute`.
            training: As in `compute`.
            layers: The pairs of layers whose arrays are perturbed, too; this model must be A's. Each of its layers then
                receives and returns the arrays of the last `compute` plus noise. None perturbs no arrays.
        """
        original = self.observation
        replacements = None if layers is None else perturb_calls(layers, original, seed=len(weights))
        perturbed = self.compute(weights, shard, weight, training, original.calls.keys(), replacements)
        self.observation = original
        return measure_perturbation(original, perturbed)

    def gradients(
        self, weights: Mapping[str, np.ndarray], shard: Sequence[Arrays], weight: float
    ) -> dict[str, np.ndarray]:
        """Return the gradients of the shard's summed losses divided by `weight`, computed as in training."""
        load_weights(self.model, dict(weights))
        variables = [variable.value for variable in self.model.trainable_variables]
        weight_tensor = tf.constant(weight, tf.float64)
        _, gradients = backward(self.model, self.task, to_tensors(list(shard)), weight_tensor, variables)
        arrays = [
            np.zeros(variable.shape) if gradient is None else tf.convert_to_tensor(gradient).numpy()
            for variable, gradient in zip(variables, gradients, strict=True)
        ]
        return self._convert_to_torch(arrays)

    def losses(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses [n] of any outputs [n, ...], such as the outputs of the other model."""
        losses: np.ndarray = self.task.losses(tf.constant(outputs), tf.constant(labels)).numpy()
        return losses

    def _convert_to_torch(self, gradients: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the gradients of the trainable variables by name, in PyTorch's layout.

        If a variable is the sum of biases of PyTorch, only the first bias has a gradient.
        """
        parameters = {id(parameter.variable): parameter for parameter in self.model.named_parameters}
        arrays: dict[str, np.ndarray] = {}
        for variable, gradient in zip(self.model.trainable_variables, gradients, strict=True):
            parameter = parameters[id(variable)]
            parameter.to_torch(gradient, arrays)
            for name in {*parameter.names} - parameter.updated_shapes.keys():
                arrays.pop(name, None)
        return arrays

    def _forward(self, micro_batch: MicroBatch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the outputs [n, ...] and the loss of each example [n]."""
        outputs = compute_outputs(self.model, micro_batch, training)
        return outputs, self.task.losses(outputs, micro_batch["labels"])
