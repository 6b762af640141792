"""Names of the tensors of a state dict that was saved from a wrapped model.

A wrapper puts its name before the names of the model's tensors: DistributedDataParallel `module.`, torch.compile
`_orig_mod.`, FSDP `_fsdp_wrapped_module.`, Lightning the attribute that holds the model, such as `model.`.
"""

from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import TypeVar

from common.errors import UserError

Tensor = TypeVar("Tensor")

PRIVATE_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
PUBLIC_WRAPPER = "module"


def remove_wrappers(name: str) -> str:
    """Return the name of a tensor without the names of PyTorch's wrappers.

    `module` is a wrapper only at the beginning, because a layer may have this name too.
    """
    parts = [part for part in name.split(".") if part not in PRIVATE_WRAPPERS]
    while len(parts) > 1 and parts[0] == PUBLIC_WRAPPER:
        parts = parts[1:]
    return ".".join(parts)


def list_prefixes(names: Collection[str], expected: Collection[str]) -> list[str]:
    """Return the prefixes under which all expected names occur among `names`, such as "model."."""
    first = next(iter(expected), "")
    prefixes = sorted({name.removesuffix(first) for name in names if name.endswith(f".{first}")})
    return [prefix for prefix in prefixes if {f"{prefix}{name}" for name in expected} <= set(names)]


def match_names(
    location: str, stored: Mapping[str, Tensor], parameters: Collection[str]
) -> tuple[dict[str, Tensor], str]:
    """Find the tensors of a model in a checkpoint that was saved from a wrapped model.

    Args:
        location: The key and the file for errors, such as weights=model.pt.
        stored: The tensors of the checkpoint by name.
        parameters: The names of the model's parameters.

    Returns:
        The tensors under the model's names, and a sentence that says which prefix was removed or added. The sentence is
        empty if there was no prefix, or only the prefix of a wrapper of PyTorch.

    Raises:
        UserError: Several parts of the checkpoint have all parameters of the model.
    """
    if set(parameters) <= stored.keys():
        return dict(stored), ""
    tensors = {remove_wrappers(name): tensor for name, tensor in stored.items()}
    if set(parameters) <= tensors.keys():
        return tensors, ""
    prefixes = list_prefixes(tensors, parameters)
    if len(prefixes) > 1:
        raise UserError(
            f"{location}: has the model's parameters under each of {', '.join(prefixes)}; save one of them under the "
            "model's own names"
        )
    if prefixes:
        (prefix,) = prefixes
        inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        return inner, f"only the tensors under {prefix} are used, without this prefix"
    for prefix in _list_common_prefixes(parameters):
        if {name.removeprefix(prefix) for name in parameters} <= tensors.keys():
            outer = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
            return outer, f"the tensors are used as those of the model's {prefix[:-1]}"
    return tensors, ""


def _list_common_prefixes(names: Collection[str]) -> list[str]:
    """Return the prefixes that all names have, such as "model." and "model.encoder."."""
    parts = [name.split(".")[:-1] for name in names]
    common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False))]
    return [".".join(common[: count + 1]) + "." for count in range(len(common))]
