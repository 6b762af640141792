"""Names of the tensors of a state dict that was saved from a wrapped model.

A wrapper puts its name before the names of the model's tensors: DistributedDataParallel `module.`, torch.compile
`_orig_mod.`, FSDP `_fsdp_wrapped_module.`, Lightning the attribute that holds the model, such as `model.`.
"""

from collections.abc import Collection

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
    """Return each prefix with which `names` has all of the expected names, such as "model."."""
    first = next(iter(expected), "")
    prefixes = sorted({name.removesuffix(first) for name in names if name.endswith(f".{first}")})
    return [prefix for prefix in prefixes if {f"{prefix}{name}" for name in expected} <= set(names)]
