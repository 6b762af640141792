"""The update: `aligned` is torch's arithmetic with every value from the config, `native` is Keras with its defaults."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.models.spec import LARGE_EMBEDDING
from common.training.schedule import learning_rate
from common.training.state import Position
from tf_impl.models.layout import NamedParameter, TransformedParameter

SCALARS = tf.TensorSpec([3], tf.float64)


class Optimizer:
    """Updates a model's parameters from their gradients, summed over the replicas. Make it in the strategy's scope."""

    def __init__(self, config: Config, model: keras.Model) -> None:
        self.settings, self.config, self.model = config.optimizer, config, model
        self.shared = isinstance(
            config.strategy, ParameterServerSettings
        )  # the parameters, by workers that update them
        self.ahead = 0  # updates made beyond the plan's global batches: asynchronous ones are parts of these
        self.parameters = [shard for variable in model.trainable_variables for shard in _shards(variable.value)]
        self.rate = 1.0  # of the last update
        self._native = _native(config, model) if self.settings.semantics == "native" else None
        if self._native is not None:
            self._slots = _native_slots(self._native, self.settings.kind)
        else:
            slots = 1 if self.settings.kind == "sgd" else 2
            self._slots = [[_zeros_beside(parameter) for parameter in self.parameters] for _ in range(slots)]

    def compute_scalars(self, step: int) -> np.ndarray:
        """What the update by global batch `step` needs besides gradients, in float64: see `correct_for_bias`."""
        self.rate = learning_rate(self.config, step)
        if self._native is not None:
            self._native.learning_rate.assign(self.rate)
        return np.array(self.correct_for_bias(self.rate, step + self.ahead))

    def correct_for_bias(self, rate: Any, step: Any) -> list[Any]:
        """The scalars of update `step` at this learning rate, numbers or float64 tensors: rate, epsilon, decay.

        The decay is what the parameters are multiplied by in AdamW, and else what times them is added to the gradients.
        Adam's fused op divides by sqrt(v) + epsilon before bias correction and torch after it; with
        c = sqrt(1 - beta2^t) the learning rate times c / (1 - beta1^t) and epsilon times c make the one the other. In
        float32 the op's slots are m and v times `_rounding`, which is taken back here.
        """
        settings = self.settings
        decay = 1 - rate * settings.weight_decay if settings.kind == "adamw" else settings.weight_decay
        if settings.kind == "sgd":
            return [rate, 0.0, decay]
        assert settings.beta1 is not None and settings.beta2 is not None and settings.epsilon is not None
        first, second = self._factors()
        correction = (1 - settings.beta2**step) ** 0.5 * math.sqrt(second)
        return [rate * correction / (1 - settings.beta1**step) / first, settings.epsilon * correction, decay]

    def densify(self, gradients: list[Any], keep_large_sparse: bool = False) -> list[Any]:
        """An embedding's gradient as one dense tensor: Keras's Adam squares repeated rows one by one.

        With their shapes, without which all-reduce does not pack them. keep_large_sparse: leave those of large
        embeddings, most of whose rows are zeros; `update` merges the repeated rows.
        """
        if self._native is not None:
            return gradients
        return [
            gradient
            if keep_large_sparse
            and isinstance(gradient, tf.IndexedSlices)
            and parameter.shape.num_elements() >= LARGE_EMBEDDING
            else tf.ensure_shape(tf.convert_to_tensor(gradient), parameter.shape)
            for gradient, parameter in zip(gradients, self.parameters, strict=True)
        ]

    def update(self, gradients: list[Any], scalars: tf.Tensor) -> tf.Tensor:
        """Apply one update in a replica, from summed gradients. Returns the norm of the gradient before clipping."""
        with tf.name_scope("update"):  # for profiles
            return self._update(gradients, scalars)

    def _update(self, gradients: list[Any], scalars: tf.Tensor) -> tf.Tensor:
        if self._native is None:
            gradients = [_merged(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self.settings.max_grad_norm is not None:  # torch's formula
            scale = tf.minimum(tf.constant(self.settings.max_grad_norm, norm.dtype) / (norm + 1e-6), 1)
            gradients = [tf.math.scalar_mul(scale, gradient) for gradient in gradients]
        if self._native is not None:
            self._apply_native(gradients)
        else:
            for index, gradient in enumerate(gradients):
                with tf.device(self.parameters[index].device) if self.shared else nullcontext():  # where it is
                    self._apply_aligned(index, gradient, tf.unstack(tf.cast(scalars, gradient.dtype)))
        return norm

    def _apply_aligned(self, index: int, gradient: Any, scalars: list[tf.Tensor]) -> None:
        rate, epsilon, decay = scalars
        gradient = tf.convert_to_tensor(gradient)
        # .handle is this replica's copy: each replica makes the same update from the same gradients, as in torch's DDP
        parameter, slots = self.parameters[index], [slot[index].handle for slot in self._slots]
        if self.settings.weight_decay and self.settings.kind == "adamw":
            # times `decay`, whose difference to 1 is exact; without undoing what other workers update meanwhile
            tf.raw_ops.ResourceApplyGradientDescent(
                var=parameter.handle, alpha=1 - decay, delta=parameter, use_locking=True
            )
        elif self.settings.weight_decay:
            gradient += parameter * decay
        if self.settings.kind == "sgd":
            tf.raw_ops.ResourceApplyMomentum(
                var=parameter.handle,
                accum=slots[0],
                lr=rate,
                grad=gradient,
                momentum=tf.constant(self.settings.momentum or 0.0, gradient.dtype),
                use_locking=True,
            )
            return
        zero = tf.zeros([], gradient.dtype)  # no powers of beta: `rate` has the bias correction
        tf.raw_ops.ResourceApplyAdam(
            var=parameter.handle,
            m=slots[0],
            v=slots[1],
            beta1_power=zero,
            beta2_power=zero,
            lr=rate,
            beta1=tf.constant(self.settings.beta1, gradient.dtype),
            beta2=tf.constant(self.settings.beta2, gradient.dtype),
            epsilon=epsilon,
            grad=gradient,
            use_locking=True,
        )

    def _apply_native(self, gradients: list[tf.Tensor]) -> None:
        assert self._native is not None
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync  # Keras sums over the replicas once more
        self._native.apply([gradient / tf.cast(replicas, gradient.dtype) for gradient in gradients])

    def slots(self) -> dict[str, np.ndarray]:
        """Its slots as `<slot>.<parameter>`: what it keeps of the gradients so far, zeros before the first.

        Float32 slots that differ from torch's by a factor are float64 here, so that `load` restores them exactly.
        """
        arrays: dict[str, dict[str, np.ndarray]] = {slot: {} for slot in self.config.optimizer.slots}
        for slot, parameter, variables, factor in self._named_slots():
            shards = [variable.numpy() for variable in variables]
            whole = np.concatenate(shards) if len(shards) > 1 else shards[0]
            parameter.to_torch(whole / np.float64(factor) if factor != 1 else whole, arrays[slot])
        return {f"{slot}.{name}": array for slot, found in arrays.items() for name, array in found.items()}

    def load(self, slots: dict[str, np.ndarray], position: Position) -> None:
        """Resume with these slots after the updates made so far."""
        self.ahead = position.step - position.plan_position
        self.rate = learning_rate(self.config, position.plan_position)
        if self._native is not None:
            self._native.iterations.assign(position.step)
        named = {
            slot: {name.removeprefix(f"{slot}."): array for name, array in slots.items() if name.startswith(f"{slot}.")}
            for slot in self.config.optimizer.slots
        }
        for slot, parameter, variables, factor in self._named_slots():
            whole = parameter.to_keras(named[slot]) * factor
            bounds = np.cumsum([variable.shape[0] for variable in variables[:-1]], dtype=int)
            for variable, part in zip(variables, np.split(whole, bounds), strict=True):
                variable.assign(part.astype(variable.dtype.as_numpy_dtype))

    def _named_slots(self) -> Iterator[tuple[str, NamedParameter | TransformedParameter, list[tf.Variable], float]]:
        """Every slot of every parameter: its shards, and what they are times torch's."""
        named = {id(parameter.variable): parameter for parameter in self.model.named_parameters}
        for slot, flat, factor in zip(self.config.optimizer.slots, self._slots, self._factors(), strict=False):
            rest = iter(flat)
            for variable in self.model.trainable_variables:
                yield slot, named[id(variable)], [next(rest) for _ in _shards(variable.value)], factor

    def _factors(self) -> list[float]:
        """What each slot is times torch's: a rounding, and in Keras's own SGD less the learning rate."""
        settings = self.settings
        if settings.kind == "sgd":
            return [-self.rate or 1.0] if self._native is not None else [1.0]
        if self._native is not None:
            return [1.0, 1.0]
        assert settings.beta1 is not None and settings.beta2 is not None
        dtype = self.parameters[0].dtype.as_numpy_dtype
        return [_rounding(settings.beta1, dtype), _rounding(settings.beta2, dtype)]


def _shards(variable: Any) -> list[tf.Variable]:
    """A variable's parts on the parameter servers, or itself."""
    shards: list[tf.Variable] = getattr(variable, "variables", [variable])
    return shards


def _merged(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with every row once."""
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _zeros_beside(parameter: tf.Variable) -> tf.Variable:
    """A slot on the device of its parameter."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(parameter):
        return tf.Variable(tf.zeros(parameter.shape, parameter.dtype), trainable=False)


def _rounding(beta: float, dtype: type[np.floating]) -> float:
    """(1 - beta) as the fused op computes it, over 1 - beta as torch does: 1.3e-5 off 1 for 0.999 in float32."""
    return float(dtype(1) - dtype(beta)) / (1 - beta)


def _native_slots(optimizer: keras.Optimizer, kind: str) -> list[list[tf.Variable]]:
    """The shards of Keras's own slots, in the order of the parameters."""
    slots = [optimizer.momentums] if kind == "sgd" else [optimizer._momentums, optimizer._velocities]
    return [[shard for variable in variables for shard in _shards(variable.value)] for variables in slots if variables]


def _native(config: Config, model: keras.Model) -> keras.Optimizer:
    settings = config.optimizer
    if settings.kind == "sgd":
        optimizer = keras.optimizers.SGD(settings.learning_rate, settings.momentum or 0.0)
    else:
        kind = keras.optimizers.AdamW if settings.kind == "adamw" else keras.optimizers.Adam
        optimizer = kind(settings.learning_rate)
    optimizer.build(model.trainable_variables)
    return optimizer
