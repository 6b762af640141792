"""The optimizer of a run, with the values of `optimizer.semantics`.

`aligned` is PyTorch's arithmetic with every value from the config, `keras` the update that Keras documents, and
`native` Keras's own optimizer with Keras's defaults. A slot is an array that the optimizer keeps for each parameter,
such as Adam's first moment. With parameter servers, a large variable is divided into shards, one on each server;
otherwise the only shard is the variable itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from common.config.optimizers import NadamSettings
from common.config.parameter_groups import GroupSettings
from common.config.schema import AVERAGE, Config
from common.config.strategies import ParameterServerSettings
from common.models.spec import LARGE_EMBEDDING
from common.training.optimizer_rules import build_rule, compute_nadam_product
from common.training.schedule import compute_learning_rate, find_update_settings
from common.training.state import Position
from common.training.weight_average import compute_share
from tf_impl.clipping import clip_gradients
from tf_impl.fused_optimizer import FusedOptimizer, Scalar
from tf_impl.layout_optimizer import LayoutOptimizer, create_slot
from tf_impl.models.layout import NamedParameter, TransformedParameter
from tf_impl.models.parameter_groups import find_groups
from tf_impl.native_optimizer import build_native, find_layout_slots, find_native_slots
from tf_impl.rule_optimizer import RuleOptimizer
from tf_impl.step import Gradient
from tf_impl.weight_average import WeightAverage

# Type of the result of `Optimizer.compute_scalars`, for compiled steps
SCALARS = tf.TensorSpec([None, None], tf.float64)


@dataclass(frozen=True)
class _Slot:
    """One slot of one parameter, such as Adam's first moment."""

    name: str
    parameter: NamedParameter | TransformedParameter
    shards: list[tf.Variable]  # one for each shard of the parameter
    torch_ratio: float  # values of this slot divided by the values of PyTorch's slot


class Optimizer:
    """An optimizer that updates a model from gradients that are summed over the replicas.

    Create it in the scope of the TensorFlow strategy.
    """

    def __init__(self, config: Config, model: keras.Model) -> None:
        """Create the slots of the trainable parameters of a model, with their initial values."""
        self.settings, self.config, self.model = config.optimizer, config, model
        self.on_servers = isinstance(config.strategy, ParameterServerSettings)  # several workers share the parameters
        # Number of updates minus number of global batches when the run was resumed. Asynchronous updates use only a
        # part of a batch.
        self.extra_updates = 0
        self.plateau_factor = 1.0  # factor by which schedule=plateau has lowered the learning rate
        self.rate = 1.0  # the learning rate of the last update, without `plateau_factor`
        self._native = build_native(config, model) if self.settings.semantics == "native" else None
        self.parameters = [shard for variable in model.trainable_variables for shard in _get_shards(variable.value)]
        groups = self._find_groups()
        self._groups = list(dict.fromkeys(groups))
        self._group_indices = [self._groups.index(group) for group in groups]  # index of each parameter's group
        dtype = self.parameters[0].dtype.as_numpy_dtype
        self._rule: FusedOptimizer | RuleOptimizer
        self._layout_slots: dict[tuple[str, str], tf.Variable] = {}  # slots that have another layout than the variables
        if self.settings.uses_layout and self._native is None:
            self._rule = LayoutOptimizer(config, self._find_parameters())
            self._layout_slots = self._rule.slots
        elif self.settings.has_fused_operation and not config.schedule.sets_momentum:
            self._rule = FusedOptimizer(config, dtype)
        else:
            self._rule = RuleOptimizer(config)
        self._slots: list[list[tf.Variable]]
        if self._native is not None and self.settings.uses_layout:
            self._slots, self._layout_slots = [], find_layout_slots(self._native, config, model)
        elif self._native is not None:
            self._slots = [
                [shard for variable in variables for shard in _get_shards(variable.value)]
                for variables in find_native_slots(self._native, config)
            ]
        else:
            value = self.settings.initial_slot_value
            self._slots = [
                [create_slot(parameter, parameter.shape, value) for parameter in self.parameters]
                for _ in range(self._rule.slot_count)
            ]
        self._average = WeightAverage(config, self.parameters)

    def _find_parameters(self) -> list[NamedParameter | TransformedParameter]:
        """Return the parameters that the trained variables hold, in the order of the variables."""
        by_variable = {id(parameter.variable): parameter for parameter in self.model.named_parameters}
        return [by_variable[id(variable)] for variable in self.model.trainable_variables]

    def _find_groups(self) -> list[GroupSettings]:
        """Return the parameter group of each shard."""
        parameters = self._find_parameters()
        groups = find_groups(parameters, self.config)
        return [group for group, x in zip(groups, parameters, strict=True) for _ in _get_shards(x.variable.value)]

    def compute_scalars(self, step: int) -> np.ndarray:
        """Return the scalars of the update by global batch `step`, float64 [groups, scalars].

        The last scalar is the share of the weights in their average, if the run keeps one. The scalars are computed
        here, because a compiled float32 step would round them.
        """
        self.rate = compute_learning_rate(self.config, step)
        rate = self.rate * self.plateau_factor
        if self._native is not None:
            self._native.learning_rate.assign(rate)
        if self.config.schedule.sets_momentum:
            assert isinstance(self._rule, RuleOptimizer)
            self._rule.rule = build_rule(find_update_settings(self.config, step))
        share = [compute_share(self.config.ema, self.config.swa, step)] if AVERAGE in self.config.slots else []
        return np.array([[*row, *share] for row in self.correct_for_bias(rate, step + self.extra_updates)])

    def correct_for_bias(self, rate: Scalar, step: Scalar) -> list[list[Scalar]]:
        """Return the scalars of update `step` for each parameter group, with the bias correction of that update."""
        if self._native is not None:
            return [[]]  # Keras computes them
        return [
            self._rule.compute_scalars(rate * group.learning_rate_scale, group.weight_decay, step)
            for group in self._groups
        ]

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
            scalars: The result of `compute_scalars`.
        """
        has_average = AVERAGE in self.config.slots
        with tf.name_scope("update"):  # the name appears in profiles
            norm = self._apply(gradients, scalars[:, :-1] if has_average else scalars)
            if has_average:
                self._average.update(tf.cast(scalars[0, -1], norm.dtype))
            return norm

    def _apply(self, gradients: Sequence[Gradient], scalars: tf.Tensor) -> tf.Tensor:
        """Update the parameters and the slots of the optimizer. Return the norm of the gradient before clipping."""
        if self._native is None:
            gradients = [_merge_rows(x) if isinstance(x, tf.IndexedSlices) else x for x in gradients]
        norm = tf.linalg.global_norm(gradients)
        gradients = clip_gradients(self.config, gradients, norm)
        if self._native is not None:
            self._apply_native(gradients)
            return norm
        scalars = tf.cast(scalars, norm.dtype)
        rows = [tf.unstack(row, self._rule.scalar_count) for row in tf.unstack(scalars, len(self._groups))]
        if isinstance(self._rule, LayoutOptimizer):
            self._rule.update(gradients, [rows[index] for index in self._group_indices])
            return norm
        for index, gradient in enumerate(gradients):
            parameter, slots = self.parameters[index], [slot[index] for slot in self._slots]
            group_index = self._group_indices[index]
            row, has_weight_decay = rows[group_index], self._groups[group_index].weight_decay != 0
            with tf.device(parameter.device) if self.on_servers else nullcontext():
                self._rule.step(parameter, tf.convert_to_tensor(gradient), slots, row, has_weight_decay)
        return norm

    def _apply_native(self, gradients: Sequence[Gradient]) -> None:
        assert self._native is not None
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync  # Keras sums over the replicas once more
        self._native.apply([gradient / tf.cast(replicas, gradient.dtype) for gradient in gradients])

    def swap_averages(self) -> None:
        """Exchange the weights and their averages (ema.* or swa.*)."""
        self._average.swap()

    def slots(self) -> dict[str, np.ndarray]:
        """Return the slots, such as moments, as `<slot>.<parameter>`; before the first update their initial values.

        If a slot differs from PyTorch's by a factor, its float32 values become float64, so that `load` restores them
        exactly.
        """
        arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.config.slots}
        for slot in self._find_slots():
            shards = [variable.numpy() for variable in slot.shards]
            whole = np.concatenate(shards) if len(shards) > 1 else shards[0]
            slot.parameter.to_torch(
                whole / np.float64(slot.torch_ratio) if slot.torch_ratio != 1 else whole, arrays[slot.name]
            )
        return {f"{slot}.{name}": array for slot, by_name in arrays.items() for name, array in by_name.items()}

    def load(self, slots: Mapping[str, np.ndarray], position: Position) -> None:
        """Load the slots of a checkpoint. position: the progress of the run in the checkpoint."""
        self.plateau_factor = position.plateau_factor
        self.extra_updates = position.step - position.plan_position
        self.rate = compute_learning_rate(self.config, position.plan_position)
        if self._native is not None:
            self._native.iterations.assign(position.step)
            if isinstance(self.settings, NadamSettings):
                self._native._u_product.assign(compute_nadam_product(self.settings, position.step))
        by_slot = {
            slot: {name.removeprefix(f"{slot}."): array for name, array in slots.items() if name.startswith(f"{slot}.")}
            for slot in self.config.slots
        }
        for slot in self._find_slots():
            # PyTorch has no slots of the terms of a sum that it does not train.
            untrained = slot.parameter.shapes.keys() - slot.parameter.updated_shapes.keys()
            zeros = {name: np.zeros(slot.parameter.shapes[name]) for name in untrained}
            whole = slot.parameter.to_keras(zeros | by_slot[slot.name]) * slot.torch_ratio
            bounds = np.cumsum([variable.shape[0] for variable in slot.shards[:-1]], dtype=int)
            shards = np.split(whole, bounds) if len(bounds) else [whole]  # a scalar cannot be split
            for variable, shard in zip(slot.shards, shards, strict=True):
                variable.assign(shard.astype(variable.dtype.as_numpy_dtype))

    def _find_slots(self) -> Iterator[_Slot]:
        """Yield every slot of every parameter."""
        for (slot, name), variable in self._layout_slots.items():
            yield _Slot(slot, NamedParameter(name, variable, tuple(variable.shape), None), [variable], 1.0)
        # SGD without momentum has no slot in PyTorch, but one in TensorFlow's operation.
        slots = list(zip(self.settings.slots, self._slots, self._compute_torch_slot_ratios(), strict=False))
        if AVERAGE in self.config.slots:
            slots.append((AVERAGE, self._average.averages, 1.0))
        for name, all_shards, ratio in slots:
            shards = iter(all_shards)
            for parameter in self._find_parameters():
                yield _Slot(name, parameter, [next(shards) for _ in _get_shards(parameter.variable.value)], ratio)

    def _compute_torch_slot_ratios(self) -> list[float]:
        """Return for each slot its values divided by the values of PyTorch's slot.

        The momentum of Keras's SGD includes the negative learning rate, and the momentum of its RMSprop the learning
        rate. The slots of the fused Adam include a rounding factor.
        """
        if self._native is None:
            return self._rule.torch_slot_ratios
        rate = self.rate * self.plateau_factor or 1.0  # 1 for a rate of 0, because the rate is a divisor
        ratios = {"momentum_buffer": -rate if self.settings.kind == "sgd" else rate}
        return [ratios.get(slot, 1.0) for slot in self.settings.slots]


def _get_shards(variable: tf.Variable) -> list[tf.Variable]:
    """Return the shards of a variable on the parameter servers; the variable itself if it is not divided."""
    shards: list[tf.Variable] = getattr(variable, "variables", [variable])
    return shards


def _merge_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sum the values of repeated rows, so that every row appears once."""
    rows, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
