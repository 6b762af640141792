"""The optimizer of a run, with the values of `optimizer.semantics`.

`aligned` is PyTorch's arithmetic with every value from the config, computed by TensorFlow's fused operations. `native`
is Keras's own optimizer. A slot is an array that the optimizer keeps for each parameter, such as Adam's first moment.
With parameter servers, a large variable is divided into shards, one on each server; otherwise it is its only shard.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import keras
import numpy as np
import tensorflow as tf

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.models.spec import LARGE_EMBEDDING
from common.training.schedule import compute_learning_rate
from common.training.state import Position
from tf_impl.models.layout import NamedParameter, TransformedParameter
from tf_impl.step import Gradient

SCALARS = tf.TensorSpec([3], tf.float64)  # type of what `Optimizer.compute_scalars` returns, for compiled steps
Scalar: TypeAlias = float | tf.Tensor


@dataclass(frozen=True)
class _Slot:
    """One slot of one parameter, such as Adam's first moment."""

    name: str
    parameter: NamedParameter | TransformedParameter
    shards: list[tf.Variable]  # one for each shard of the parameter
    factor: float  # the values of this slot divided by the values of PyTorch's slot


class Optimizer:
    """An optimizer that updates a model from gradients that are summed over the replicas.

    Create it in the scope of the TensorFlow strategy.
    """

    def __init__(self, config: Config, model: keras.Model) -> None:
        """Create zero slots for the trainable parameters of a model."""
        self.settings, self.config, self.model = config.optimizer, config, model
        self.on_servers = isinstance(config.strategy, ParameterServerSettings)  # several workers share the parameters
        # Updates minus global batches, when the run was resumed: an asynchronous update uses only a part of a batch.
        self.extra_updates = 0
        self.parameters = [shard for variable in model.trainable_variables for shard in _get_shards(variable.value)]
        self.plateau_factor = 1.0  # by which schedule=plateau has lowered the learning rate
        self.rate = 1.0  # the learning rate of the last update, without `plateau_factor`
        self._native = _build_native(config, model) if self.settings.semantics == "native" else None
        if self._native is not None:
            self._slots = _find_native_slots(self._native, self.settings.kind)
        else:
            slot_count = 1 if self.settings.kind == "sgd" else 2
            self._slots = [[_create_slot(parameter) for parameter in self.parameters] for _ in range(slot_count)]

    def compute_scalars(self, step: int) -> np.ndarray:
        """Return learning rate, epsilon and decay of the update by global batch `step`, float64 [3].

        `correct_for_bias` describes them. They are computed here, because a compiled float32 step would round them.
        """
        self.rate = compute_learning_rate(self.config, step)
        rate = self.rate * self.plateau_factor
        if self._native is not None:
            self._native.learning_rate.assign(rate)
        return np.array(self.correct_for_bias(rate, step + self.extra_updates))

    def correct_for_bias(self, rate: Scalar, step: Scalar) -> list[Scalar]:
        """Return the learning rate, epsilon and decay that the fused operations need in update `step`.

        AdamW multiplies the parameters by the decay. The other optimizers multiply the parameters by the decay and add
        the product to the gradients.

        Adam's fused operation adds epsilon to sqrt(v) before bias correction, PyTorch after it. With t = step and
        c = sqrt(1 - beta2^t), both agree if the learning rate is multiplied by c / (1 - beta1^t) and epsilon by c. In
        float32 the slots of the operation are the moments m and v multiplied by a rounding factor each, by which the
        results are divided (`_compute_rounding_factor`).
        """
        settings = self.settings
        decay = 1 - rate * settings.weight_decay if settings.kind == "adamw" else settings.weight_decay
        if settings.kind == "sgd":
            return [rate, 0.0, decay]
        assert settings.beta1 is not None and settings.beta2 is not None and settings.epsilon is not None
        first_factor, second_factor = self._compute_slot_factors()
        correction = (1 - settings.beta2**step) ** 0.5 * math.sqrt(second_factor)
        return [rate * correction / (1 - settings.beta1**step) / first_factor, settings.epsilon * correction, decay]

    def densify(self, gradients: list[Gradient], keep_large_sparse: bool = False) -> list[Gradient]:
        """Convert the gradients of embeddings, which are sparse, to dense tensors. Native optimizers get them sparse.

        A sparse gradient may repeat a row, but Adam must square the sum of the repeated rows. The tensors get static
        shapes, because all-reduce packs only tensors of static shape.

        Args:
            gradients: The gradients in the order of the parameters.
            keep_large_sparse: Leave the gradients of large embeddings sparse, because most of their rows are zeros.
                `update` then merges repeated rows.
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

    def update(self, gradients: Sequence[Gradient], scalars: tf.Tensor) -> tf.Tensor:
        """Apply one update in a replica, and return the norm of the gradient before clipping.

        Args:
            gradients: The gradients, summed over the replicas.
            scalars: Learning rate, epsilon and decay, from `compute_scalars`.
        """
        with tf.name_scope("update"):  # for profiles
            if self._native is None:
                gradients = [_merge_rows(x) if isinstance(x, tf.IndexedSlices) else x for x in gradients]
            norm = tf.linalg.global_norm(gradients)
            if self.settings.max_grad_norm is not None:  # the formula of torch.nn.utils.clip_grad_norm_
                scale = tf.minimum(tf.constant(self.settings.max_grad_norm, norm.dtype) / (norm + 1e-6), 1)
                gradients = [tf.math.scalar_mul(scale, gradient) for gradient in gradients]
            if self._native is not None:
                self._apply_native(gradients)
                return norm
            for index, gradient in enumerate(gradients):
                with tf.device(self.parameters[index].device) if self.on_servers else nullcontext():
                    self._apply_aligned(index, gradient, tf.unstack(tf.cast(scalars, gradient.dtype)))
            return norm

    def _apply_aligned(self, index: int, gradient: Gradient, scalars: list[tf.Tensor]) -> None:
        rate, epsilon, decay = scalars
        gradient = tf.convert_to_tensor(gradient)
        # A handle is this replica's copy of a variable. Each replica makes the same update from the same gradients.
        parameter, slots = self.parameters[index], [slot[index].handle for slot in self._slots]
        if self.settings.weight_decay and self.settings.kind == "adamw":
            # A subtraction, because 1 - decay is exact, and because an assignment would undo other workers' updates.
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
        no_power = tf.zeros([], gradient.dtype)  # no bias correction in the operation: `rate` includes it already
        tf.raw_ops.ResourceApplyAdam(
            var=parameter.handle,
            m=slots[0],
            v=slots[1],
            beta1_power=no_power,
            beta2_power=no_power,
            lr=rate,
            beta1=tf.constant(self.settings.beta1, gradient.dtype),
            beta2=tf.constant(self.settings.beta2, gradient.dtype),
            epsilon=epsilon,
            grad=gradient,
            use_locking=True,
        )

    def _apply_native(self, gradients: Sequence[Gradient]) -> None:
        assert self._native is not None
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync  # Keras sums over the replicas once more
        self._native.apply([gradient / tf.cast(replicas, gradient.dtype) for gradient in gradients])

    def slots(self) -> dict[str, np.ndarray]:
        """Return the slots, such as moments, as `<slot>.<parameter>`; they are zero before the first update.

        If a slot differs from PyTorch's by a factor, its float32 values become float64, so that `load` restores them
        exactly.
        """
        arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.config.optimizer.slots}
        for slot in self._find_slots():
            shards = [variable.numpy() for variable in slot.shards]
            whole = np.concatenate(shards) if len(shards) > 1 else shards[0]
            slot.parameter.to_torch(whole / np.float64(slot.factor) if slot.factor != 1 else whole, arrays[slot.name])
        return {f"{slot}.{name}": array for slot, by_name in arrays.items() for name, array in by_name.items()}

    def load(self, slots: dict[str, np.ndarray], position: Position) -> None:
        """Load the slots of a checkpoint. position: the progress of the run in the checkpoint."""
        self.plateau_factor = position.plateau_factor
        self.extra_updates = position.step - position.plan_position
        self.rate = compute_learning_rate(self.config, position.plan_position)
        if self._native is not None:
            self._native.iterations.assign(position.step)
        by_slot = {
            slot: {name.removeprefix(f"{slot}."): array for name, array in slots.items() if name.startswith(f"{slot}.")}
            for slot in self.config.optimizer.slots
        }
        for slot in self._find_slots():
            whole = slot.parameter.to_keras(by_slot[slot.name]) * slot.factor
            bounds = np.cumsum([variable.shape[0] for variable in slot.shards[:-1]], dtype=int)
            for variable, shard in zip(slot.shards, np.split(whole, bounds), strict=True):
                variable.assign(shard.astype(variable.dtype.as_numpy_dtype))

    def _find_slots(self) -> Iterator[_Slot]:
        """Yield every slot of every parameter."""
        parameters = {id(parameter.variable): parameter for parameter in self.model.named_parameters}
        # SGD without momentum has no slot in PyTorch, but one in TensorFlow's operation.
        slots = zip(self.config.optimizer.slots, self._slots, self._compute_slot_factors(), strict=False)
        for name, all_shards, factor in slots:
            shards = iter(all_shards)
            for variable in self.model.trainable_variables:
                parameter = parameters[id(variable)]
                yield _Slot(name, parameter, [next(shards) for _ in _get_shards(variable.value)], factor)

    def _compute_slot_factors(self) -> list[float]:
        """Return the factor of each slot: its values divided by the values of PyTorch's slot.

        The momentum of Keras's SGD includes the negative learning rate. The slots of the fused Adam include a rounding
        factor.
        """
        settings = self.settings
        if settings.kind == "sgd":
            rate = self.rate * self.plateau_factor  # of the next update, apart from the schedule
            return [-rate or 1.0] if self._native is not None else [1.0]  # 1 for a rate of 0: it is a divisor
        if self._native is not None:
            return [1.0, 1.0]
        assert settings.beta1 is not None and settings.beta2 is not None
        dtype = self.parameters[0].dtype.as_numpy_dtype
        return [_compute_rounding_factor(settings.beta1, dtype), _compute_rounding_factor(settings.beta2, dtype)]


def _get_shards(variable: tf.Variable) -> list[tf.Variable]:
    """Return the shards of a variable on the parameter servers; the variable itself if it is not divided."""
    shards: list[tf.Variable] = getattr(variable, "variables", [variable])
    return shards


def _merge_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sum the values of repeated rows, so that every row appears once."""
    rows, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _create_slot(parameter: tf.Variable) -> tf.Variable:
    """Create a slot of zeros on the device of its parameter."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(parameter):
        return tf.Variable(tf.zeros(parameter.shape, parameter.dtype), trainable=False)


def _compute_rounding_factor(beta: float, dtype: type[np.floating]) -> float:
    """Return 1 - beta as the fused operation rounds it, divided by 1 - beta: 1 - 1.3e-5 for 0.999 in float32."""
    return float(dtype(1) - dtype(beta)) / (1 - beta)


def _find_native_slots(optimizer: keras.Optimizer, kind: str) -> list[list[tf.Variable]]:
    """Return the shards of each slot of a Keras optimizer, in the order of the parameters."""
    slots: Sequence[Sequence[keras.Variable]]
    slots = [optimizer.momentums] if kind == "sgd" else [optimizer._momentums, optimizer._velocities]
    return [
        [shard for variable in variables for shard in _get_shards(variable.value)] for variables in slots if variables
    ]


def _build_native(config: Config, model: keras.Model) -> keras.Optimizer:
    """Build Keras's optimizer with Keras's defaults for all values but the learning rate and the momentum."""
    settings = config.optimizer
    if settings.kind == "sgd":
        optimizer = keras.optimizers.SGD(settings.learning_rate, settings.momentum or 0.0)
    else:
        kind = keras.optimizers.AdamW if settings.kind == "adamw" else keras.optimizers.Adam
        optimizer = kind(settings.learning_rate)
    optimizer.build(model.trainable_variables)
    return optimizer
