"""The parameter groups of a model: the settings that `optimizer.groups` has for each parameter."""

from collections.abc import Mapping

from torch.nn import Module, Parameter

from common.config.parameter_groups import GroupSettings, assign_groups
from common.config.schema import Config


def freeze_parameters(model: Module, config: Config) -> None:
    """Exclude the parameters of frozen groups from training."""
    parameters = dict(model.named_parameters())
    for name, group in find_groups(parameters, config).items():
        if group.frozen:
            parameters[name].requires_grad = False


def find_groups(parameters: Mapping[str, Parameter], config: Config) -> dict[str, GroupSettings]:
    """Return the group of each parameter, by name."""
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    return assign_groups(config.optimizer.groups, config.optimizer.weight_decay, shapes)
