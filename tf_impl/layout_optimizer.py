"""An optimizer whose update needs whole parameters in PyTorch's layout, such as Adafactor."""

from collections.abc import Sequence

import tensorflow as tf

from common.config.schema import Config
from common.errors import UserError
from tf_impl.models.layout import NamedParameter, TransformedParameter
from tf_impl.models.tensor_layout import build_layouts
from tf_impl.rule_optimizer import RuleOptimizer


class LayoutOptimizer(RuleOptimizer):
    """An optimizer that updates all variables at once, by the rule of each parameter of PyTorch.

    Attributes:
        slots: The slots by the names of the slot and the parameter, in PyTorch's layout.
    """

    def __init__(self, config: Config, parameters: Sequence[NamedParameter | TransformedParameter]) -> None:
        """Create the slots of the trained parameters.

        Raises:
            UserError: Only a part of a parameter is trained, or a variable holds some of its elements twice.
        """
        super().__init__(config)
        settings = config.optimizer
        self.slot_count = 0  # the slots belong to parameters of PyTorch, not to variables
        self.variables = [parameter.variable.value for parameter in parameters]
        try:
            self.layouts = build_layouts(parameters)
        except ValueError as error:
            problem = f"optimizer.kind={settings.kind}: needs whole parameters, but {error}"
            raise UserError(f"{problem}; choose another optimizer") from error
        self.slots: dict[tuple[str, str], tf.Variable] = {}
        for layout in self.layouts:
            variable = self.variables[layout.numbers[0]]
            for name, shape in layout.shapes.items():
                for slot, slot_shape in settings.list_slots(name, shape).items():
                    self.slots[slot, name] = create_slot(variable, slot_shape, settings.initial_slot_value)

    def update(self, gradients: Sequence[tf.Tensor], scalars: Sequence[Sequence[tf.Tensor]]) -> None:
        """Update the variables and their slots in a replica.

        Args:
            gradients: The gradients, summed over the replicas.
            scalars: For each variable the result of `compute_scalars`, in the gradient's type.
        """
        for layout in self.layouts:
            weights = [_read(self.variables[number], gradients[number].dtype) for number in layout.numbers]
            pairs = zip(
                layout.shapes,
                layout.to_torch(weights),
                layout.to_torch([tf.convert_to_tensor(gradients[number]) for number in layout.numbers]),
                strict=True,
            )
            row = scalars[layout.numbers[0]]  # variables with a common parameter are in the same group
            changes = layout.to_keras([self._update_slots(*pair, row) for pair in pairs])
            for number, change in zip(layout.numbers, changes, strict=True):
                tf.raw_ops.AssignAddVariableOp(resource=self.variables[number].handle, value=change)

    def _update_slots(
        self, name: str, weight: tf.Tensor, gradient: tf.Tensor, scalars: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Update the slots of a parameter, and return the change of the parameter."""
        slots = [self.slots[slot, name] for slot in self.config.optimizer.list_slots(name, tuple(weight.shape))]
        before = [_read(slot, weight.dtype) for slot in slots]
        layout = self.config.optimizer.find_layout(name)
        change, after = self.rule.compute(tf, weight, gradient, before, scalars, layout)
        for slot, value in zip(slots, after, strict=True):
            tf.raw_ops.AssignVariableOp(resource=slot.handle, value=value)
        return change


def create_slot(parameter: tf.Variable, shape: Sequence[int], value: float) -> tf.Variable:
    """Create a slot whose elements have a value, on the device of its parameter."""
    with tf.distribute.get_strategy().extended.colocate_vars_with(parameter):
        return tf.Variable(tf.fill(shape, tf.constant(value, parameter.dtype)), trainable=False)


def _read(variable: tf.Variable, dtype: tf.DType) -> tf.Tensor:
    """Return the values of this replica's copy of a variable."""
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=dtype)
