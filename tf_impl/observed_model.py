"""A run's model, computed step by step for common.diagnose: what every layer, the loss and the gradients are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.config.compose import load_config
from common.data.batches import Arrays
from common.diagnose.observation import Observation
from common.map.description import Call
from common.run.inputs import open_inputs
from tf_impl.batches import to_tensors
from tf_impl.forward_trace import ForwardTrace
from tf_impl.models import build_model
from tf_impl.models.layout import TransformedParameter
from tf_impl.models.weights import load_weights
from tf_impl.step import MicroBatch, backward, compute_outputs, sum_losses
from tf_impl.task import build_task_functions


class ObservedModel:
    """The model and the losses of a run directory that is prepared."""

    def __init__(self, run_dir: str) -> None:
        tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced for several shapes
        config = load_config(Path(run_dir) / "config.yaml")
        self.model = build_model(config, open_inputs(config, Path(run_dir)).initial)
        self.task = build_task_functions(config.task)
        self.paths = {
            name: each.variable.path.rpartition("/")[0]
            for each in self.model.named_parameters
            for name in (each.shapes if isinstance(each, TransformedParameter) else [each.name])
        }

    def layers(self) -> dict[str, str]:
        """The layer of each parameter and moving statistic, by the parameter's name."""
        return self.paths

    def compute(
        self,
        weights: Mapping[str, np.ndarray],
        shard: Sequence[Arrays],
        weight: float,
        training: bool,
        given: Mapping[str, Call] | None = None,
    ) -> Observation:
        """A shard with these weights. weight: of the global batch. given: see Trace; the first micro-batch's."""
        load_weights(self.model, dict(weights))
        variables = [each.value for each in self.model.trainable_variables]
        losses, outputs, calls, flattened = [], [], {}, {}
        sums = [np.zeros(variable.shape, variable.dtype.as_numpy_dtype) for variable in variables]
        for index, part in enumerate(to_tensors(list(shard))):
            with tf.GradientTape() as tape:
                if index == 0:
                    with ForwardTrace(self.model, given) as trace:
                        computed, loss = self._forward(part, training)
                    calls, flattened = trace.calls, trace.flattened
                else:
                    computed, loss = self._forward(part, training)
                total = sum_losses(self.task, computed, part) / weight
            if given is None:
                found = tape.gradient(total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
                sums = [a + tf.convert_to_tensor(b).numpy() for a, b in zip(sums, found, strict=True)]
            losses.append(loss.numpy())
            outputs.append(computed.numpy())
        return Observation(outputs, losses, calls, flattened, self._by_name(sums))

    def gradients(
        self, weights: Mapping[str, np.ndarray], shard: Sequence[Arrays], weight: float
    ) -> dict[str, np.ndarray]:
        """Of the shard's part of the mean loss over the global batch, as a training step computes them."""
        load_weights(self.model, dict(weights))
        variables = [each.value for each in self.model.trainable_variables]
        total = tf.constant(weight, tf.float64)
        _, found = backward(self.model, self.task, to_tensors(list(shard)), total, variables)
        zeros = [np.zeros(variable.shape) for variable in variables]
        pairs = zip(found, zeros, strict=True)
        return self._by_name([zero if each is None else tf.convert_to_tensor(each).numpy() for each, zero in pairs])

    def losses(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The losses [n] of any outputs."""
        found: np.ndarray = self.task.losses(tf.constant(outputs), tf.constant(labels)).numpy()
        return found

    def _by_name(self, gradients: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Gradients of the trainable variables, in PyTorch's layout. Of two biases that are one here only the first."""
        named = {id(each.variable): each for each in self.model.named_parameters}
        found: dict[str, np.ndarray] = {}
        for variable, gradient in zip(self.model.trainable_variables, gradients, strict=True):
            parameter = named[id(variable)]
            parameter.to_torch(gradient, found)
            if isinstance(parameter, TransformedParameter) and parameter.transformation.joined == "+":
                del found[parameter.transformation.sources[1].name]
        return found

    def _forward(self, part: MicroBatch, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = compute_outputs(self.model, part, training)
        return outputs, self.task.losses(outputs, part["labels"])
