"""Modules of a user's model that PyTorch does not register, because they are in a list, a tuple or a dict.

Their parameters may be registered elsewhere, such as in an nn.ParameterList. Then the modules are layers like others.
"""

from collections.abc import Iterator

import torch

from common.errors import UserError


def list_unregistered(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the modules in lists, tuples and dicts of a model's modules, by a path such as blocks.0.fc1."""
    known = {id(module) for module in model.modules()}
    unregistered: dict[str, torch.nn.Module] = {}
    roots = [(name, module) for name, module in model.named_modules()]
    while roots:
        prefix, owner = roots.pop(0)
        for name, value in vars(owner).items():
            if name.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            for path, root in _iterate_modules(f"{prefix}.{name}".lstrip("."), value):
                modules = {f"{path}.{name}".rstrip("."): module for name, module in root.named_modules()}
                new = {path: module for path, module in modules.items() if id(module) not in known}
                known |= {id(module) for module in new.values()}
                unregistered |= new
                roots += new.items()
    return unregistered


def check_registration(key: str, model: torch.nn.Module) -> None:
    """Raise UserError if an unregistered module has variables of its own, or computes something else in training mode.

    Args:
        key: The config key and the factory, with which the error begins.
        model: The model.
    """
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for path, module in list_unregistered(model).items():
        variables = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        reason = "are not trained, copied or saved" if any(id(tensor) not in known for tensor in variables) else ""
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            reason = "do not know whether the model is in training mode"
        if reason:
            raise UserError(
                f"{key}: {path} ({type(module).__name__}) is in a list, tuple or dict, whose layers PyTorch does not "
                f"register: they {reason}; use nn.ModuleList or nn.ModuleDict"
            )


def _iterate_modules(path: str, value: object) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules in nested lists, tuples and dicts, with their paths."""
    if isinstance(value, torch.nn.Module):
        yield path, value
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _iterate_modules(f"{path}.{name}", item)
