"""Averages of the weights (ema.* or swa.*). The average of a parameter is one more slot of the parameter."""

from collections.abc import Sequence
from contextlib import nullcontext

import tensorflow as tf

from common.config.schema import AVERAGE, Config
from common.config.strategies import ParameterServerSettings


class WeightAverage:
    """The averages of some parameters. There are none if the run keeps no average.

    Create it in the scope of the TensorFlow strategy.
    """

    def __init__(self, config: Config, parameters: Sequence[tf.Variable]) -> None:
        """Start with the values of the parameters."""
        self.parameters = parameters if AVERAGE in config.slots else []
        self.on_servers = isinstance(config.strategy, ParameterServerSettings)
        self.averages = [_copy(parameter) for parameter in self.parameters]

    def update(self, share: tf.Tensor) -> None:
        """Include the weights in the averages after an update. share: the share of these weights in the new average.

        The formula is the same as in torch.lerp, which is exact for the shares 0 and 1.
        """
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            with tf.device(parameter.device) if self.on_servers else nullcontext():
                before = tf.raw_ops.ReadVariableOp(resource=average.handle, dtype=share.dtype)
                weights = tf.raw_ops.ReadVariableOp(resource=parameter.handle, dtype=share.dtype)
                change = weights - before
                after = tf.where(share < 0.5, before + share * change, weights - change * (1 - share))
                tf.raw_ops.AssignVariableOp(resource=average.handle, value=after)

    def swap(self) -> None:
        """Exchange the weights and their averages. Call this method outside of replicas."""
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            weights = parameter.numpy()
            parameter.assign(average.numpy())
            average.assign(weights)


def _copy(parameter: tf.Variable) -> tf.Variable:
    """Create a variable with the values of a parameter, on its device."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(parameter):
        return tf.Variable(tf.convert_to_tensor(parameter), trainable=False)
