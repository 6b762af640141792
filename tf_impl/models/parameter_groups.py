"""The parameter groups of a model: the settings that `optimizer.groups` has for each parameter."""

import math
from collections.abc import Iterable

import keras

from common.config.parameter_groups import GroupSettings, assign_groups
from common.config.schema import Config
from common.errors import UserError
from tf_impl.models.layout import NamedParameter, TransformedParameter


def freeze_parameters(model: keras.Model, config: Config) -> None:
    """Exclude the parameters of frozen groups from training."""
    trained = {id(variable) for variable in model.trainable_variables}
    parameters = [parameter for parameter in model.named_parameters if id(parameter.variable) in trained]
    for parameter, group in zip(parameters, find_groups(parameters, config), strict=True):
        if group.frozen:
            parameter.variable.trainable = False


def find_groups(parameters: Iterable[NamedParameter | TransformedParameter], config: Config) -> list[GroupSettings]:
    """Return the group of each parameter.

    Raises:
        UserError: A variable holds several parameters of PyTorch, which the optimizer treats differently.
    """
    settings, groups = config.optimizer, []
    for parameter in parameters:
        assigned = assign_groups(settings.groups, settings.weight_decay, parameter.updated_shapes)
        names = " and ".join(assigned)
        if len({*assigned.values()}) > 1:
            raise UserError(
                f"optimizer.groups: {names} are in different groups, but TensorFlow's {parameter.variable.path} holds "
                "them together; give them the same values"
            )
        if settings.clip_norm is not None and len(assigned) > 1:
            raise UserError(
                f"optimizer.clip_norm={settings.clip_norm:g}: TensorFlow's {parameter.variable.path} holds {names} "
                "together, which have a norm each in PyTorch; use optimizer.max_grad_norm"
            )
        size = sum(map(math.prod, parameter.updated_shapes.values()))
        if settings.clip_norm is not None and math.prod(parameter.variable.shape) < size:
            raise UserError(
                f"optimizer.clip_norm={settings.clip_norm:g}: TensorFlow's {parameter.variable.path} holds only a part "
                f"of {names}, which has one norm in PyTorch; use optimizer.max_grad_norm"
            )
        groups.append(next(iter(assigned.values())))
    return groups
