"""Modules of a user's model that PyTorch does not register, because they are in a list, a tuple or a dict.

Their parameters may be registered elsewhere, such as in an nn.ParameterList. Then the modules are layers like others.
"""

from collections.abc import Iterator

import torch

from common.errors import UserError

MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module()))  # PyTorch registers modules, parameters and hooks in them


def list_unregistered(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the modules in lists, tuples and dicts of a model's modules, by a path such as blocks.0.fc1."""
    listed_ids = {id(module) for module in model.modules()}  # ids of the modules and containers so far
    unregistered: dict[str, torch.nn.Module] = {}
    owners = [*model.named_modules()]
    while owners:
        prefix, owner = owners.pop(0)
        for name, value in vars(owner).items():
            if name in MODULE_ATTRIBUTES:
                continue
            for path, root in _iterate_modules(f"{prefix}.{name}".lstrip("."), value, listed_ids):
                modules = {f"{path}.{name}".rstrip("."): module for name, module in root.named_modules()}
                added = {path: module for path, module in modules.items() if id(module) not in listed_ids}
                listed_ids |= {id(module) for module in added.values()}
                unregistered |= added
                owners += added.items()
    return unregistered


def check_registration(key: str, model: torch.nn.Module) -> None:
    """Raise UserError if an unregistered module has trainable parameters of its own, or drops elements.

    Args:
        key: The config key and the factory: the start of the error.
        model: The model.
    """
    registered = {id(parameter) for parameter in model.parameters()}
    for path, module in list_unregistered(model).items():
        trainable = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
        reason = "are not trained, copied or saved" if any(id(x) not in registered for x in trainable) else ""
        rate = getattr(module, "dropout", 0)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) or (isinstance(rate, int | float) and rate > 0):
            reason = "do not know whether the model is in training mode"
        if reason:
            raise UserError(
                f"{key}: {path} ({type(module).__name__}) is in a list, tuple or dict, whose layers PyTorch does not "
                f"register: they {reason}; use nn.ModuleList or nn.ModuleDict"
            )


def _iterate_modules(path: str, value: object, listed_ids: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules in nested containers with their paths, and add the ids of the containers to `listed_ids`."""
    if isinstance(value, torch.nn.Module):
        yield path, value
    elif isinstance(value, list | tuple | dict) and id(value) not in listed_ids:
        listed_ids.add(id(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _iterate_modules(f"{path}.{name}", item, listed_ids)
