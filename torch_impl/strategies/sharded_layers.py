"""Layers of a model whose parameters strategy=fsdp gathers together."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch.distributed.fsdp import FSDPModule
from torch.nn import Module, ModuleList, Parameter, Sequential

from common.errors import UserError

AUTO, NONE = "auto", "none"  # values of `strategy.layers` that are not patterns


def check_shardable(model: Module) -> None:
    """Raise UserError if fully_shard cannot divide a parameter. Make the parameters contiguous for fully_shard."""
    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise UserError("strategy=fsdp: this PyTorch is too old; install 2.13 or newer, or choose strategy=zero or ddp")
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise UserError(
                f"strategy=fsdp: parameter {name} is a scalar, which has no rows to divide; choose strategy=zero or ddp"
            )
        parameter.data = parameter.data.contiguous()


def check_replaced(originals: dict[str, weakref.ref[Parameter]]) -> None:
    """Raise UserError if something still refers to a parameter that fully_shard has replaced by its parts.

    Args:
        originals: Weak references to the parameters that the model had before fully_shard, by name.
    """
    if any(reference() is not None for reference in originals.values()):
        gc.collect()  # called only if a reference is left, because it takes long
    for name, reference in originals.items():
        if reference() is not None:
            raise UserError(
                f"strategy=fsdp: something besides its module refers to parameter {name}, such as a list, and would "
                "not see its updates; use the attribute of the module, or choose strategy=zero or ddp"
            )


def find_layers(model: Module, choice: str) -> list[Module]:
    """Return the layers that gather their parameters, inner layers before outer ones, without the model itself.

    Args:
        model: The model.
        choice: The value of `strategy.layers`.

    Raises:
        UserError: A pattern matches no layer, or a layer that cannot gather its parameters.
    """
    if choice == NONE:
        return []
    if choice == AUTO:
        return [layer for layer in _find_repeated_layers(model) if not _shares_parameters(model, layer)]
    patterns = [pattern.strip() for pattern in choice.split("|")]
    layers = {name: layer for name, layer in model.named_modules() if any(fnmatchcase(name, x) for x in patterns)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in layers):
            names = ", ".join(name for name, _ in [*model.named_modules()][1:4])
            raise UserError(f"strategy.layers={choice}: {pattern} matches no layer; the model has {names}, ...")
    for name, layer in layers.items():
        if not _has_forward(layer) or _shares_parameters(model, layer):
            problem = "shares a parameter with another layer" if _has_forward(layer) else "is never called"
            raise UserError(
                f"strategy.layers={choice}: {name} {problem}, so it cannot gather its parameters; name others"
            )
    return [layer for layer in reversed(layers.values()) if layer is not model]


def _find_repeated_layers(module: Module) -> Iterator[Module]:
    """Yield the outermost repeated layers, such as the blocks of a transformer.

    A repeated layer has sublayers, and is one of several layers of its class in a ModuleList or Sequential.
    """
    is_list = isinstance(module, ModuleList | Sequential)
    counts = Counter(type(child) for child in module.children())
    for child in module.children():
        is_composed = _has_forward(child) and any(True for _ in child.children())
        if is_list and is_composed and counts[type(child)] > 1 and any(True for _ in child.parameters()):
            yield child
        else:
            yield from _find_repeated_layers(child)


def _has_forward(module: Module) -> bool:
    return type(module).forward is not Module.forward


def _shares_parameters(model: Module, layer: Module) -> bool:
    """Check whether a parameter of a layer also belongs to a module outside the layer."""
    inside, parameters = set(layer.modules()), set(layer.parameters())
    outside = (module for module in model.modules() if module not in inside)
    return any(parameter in parameters for module in outside for parameter in module.parameters(recurse=False))
