"""The description of a PyTorch model in a record: its layers and its variables."""

from __future__ import annotations

import torch

from common.recording.record_format import ROOT, LayerFacts, ModelFacts, VariableFacts
from common.recording.record_writer import list_plain_values
from torch_impl.record.arrays import name_tensors

WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
SHARDED = {"FullyShardedDataParallel", "FSDPModule", "FlatParameter", "DTensor"}  # classes that split parameters
NAME_PREFIXES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
# Classes that common.map knows. The kind of a layer is the one that it is or derives from, else its own class, with its
# package if the name of the class is one of these.
KNOWN_KINDS = {
    "Linear", "Embedding", "LayerNorm", "RMSNorm", "GroupNorm", "PReLU", "SyncBatchNorm", "MultiheadAttention",
    "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "Dropout", "transformers.Conv1D",
    *(f"{kind}{n}d" for kind in ("BatchNorm", "InstanceNorm", "Conv", "ConvTranspose") for n in (1, 2, 3)),
}  # fmt: skip
# Operations that keep the elements of an example in their order: PyTorch's names of their nodes in the graph.


def unwrap_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module that the script defined, without the modules that wrap it."""
    while (attribute := WRAPPERS.get(type(model).__name__)) is not None and hasattr(model, attribute):
        model = getattr(model, attribute)
    return model


def find_compiled(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the outermost wrapper of a model that torch.compile made; None if there is none."""
    while (attribute := WRAPPERS.get(type(model).__name__)) is not None and hasattr(model, attribute):
        if attribute == "_orig_mod":
            return model
        model = getattr(model, attribute)
    return None


def find_entry(model: torch.nn.Module) -> tuple[torch.nn.Module, bool]:
    """Return the module whose hooks run before and after the model, and whether the layers can have hooks."""
    compiled = find_compiled(model)
    if compiled is not None:
        return compiled, False
    if len(getattr(model, "device_ids", None) or ()) > 1:
        return model, False  # DataParallel computes copies of the model in threads
    inner = unwrap_model(model)
    return inner, not has_compiled_layers(inner)


def has_compiled_layers(model: torch.nn.Module) -> bool:
    """Check whether a model or one of its layers is compiled in place or wrapped by torch.compile."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def is_sharded(model: torch.nn.Module) -> bool:
    """Check whether each rank holds a part of the parameters only."""
    objects = [*model.modules(), *model.parameters()]
    return any(kind.__name__ in SHARDED for item in objects for kind in type(item).__mro__)


def clean_name(name: str) -> str:
    """Return the name of a variable without the names of wrappers within the model."""
    for prefix in NAME_PREFIXES:
        name = name.replace(prefix, "")
    return name


def name_variables(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of an unwrapped model by name, tied ones once."""
    variables = [*model.named_parameters(), *model.named_buffers()]
    return {clean_name(name): tensor for name, tensor in variables if not torch.nn.parameter.is_lazy(tensor)}


def name_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return an unwrapped model and its layers by unique path. A child whose name is "model" is not the model."""
    names = {clean_name(name): layer for name, layer in model.named_modules()}
    path = ROOT
    while path in names:
        path += "_1"
    return {(name or ROOT) if name != ROOT else path: layer for name, layer in names.items()}


def describe_model(model: torch.nn.Module, layers: list[LayerFacts]) -> ModelFacts:
    """Describe an unwrapped model.

    Args:
        model: The model.
        layers: The layers in the order in which the first forward pass entered them.
    """
    variables = name_variables(model)
    names: dict[int, list[str]] = {id(tensor): [] for tensor in variables.values()}
    for name, tensor in [
        *model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)
    ]:  # fmt: skip
        names.setdefault(id(tensor), []).append(clean_name(name))
    facts: dict[str, VariableFacts] = {
        name: {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).replace("torch.", ""),
            "trainable": tensor.requires_grad,
        }
        for name, tensor in variables.items()
    }
    tied = [same for same in names.values() if len(same) > 1]
    kind = type(model)
    return {"name": f"{kind.__module__}.{kind.__qualname__}", "layers": layers, "variables": facts, "tied": tied}


def describe_layer(
    path: str, layer: torch.nn.Module, names: dict[int, str], unflattened_shape: list[int] | None = None
) -> LayerFacts:
    """Describe a layer.

    Args:
        path: The path of the layer in the model.
        layer: The layer.
        names: The names of the model's variables by identity.
        unflattened_shape: The shape of one example before the model flattened it for this layer.
    """
    kind = _find_kind(layer)
    recurse = kind == "MultiheadAttention"  # computes its output projection without calling it
    variables = [*layer.named_parameters(recurse=recurse), *layer.named_buffers(recurse=recurse)]
    public = {name: value for name, value in vars(layer).items() if not name.startswith("_") and name != "training"}
    if path == ROOT and callable(to_dict := getattr(public.get("config"), "to_dict", None)):
        public.update(to_dict())  # of transformers
    return {
        "kind": kind,
        "path": path,
        "attributes": list_plain_values(public),
        "variables": {role: names[id(tensor)] for role, tensor in variables if id(tensor) in names},
        "unflattened_shape": unflattened_shape,
        "composite": None,
        "training": layer.training,
    }


def _find_kind(layer: torch.nn.Module) -> str:
    kinds = [kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("torch.")]
    name = type(layer).__name__
    qualified_name = f"{type(layer).__module__.partition('.')[0]}.{name}"
    own_kind = qualified_name if KNOWN_KINDS & {name, qualified_name} else name
    return next((kind for kind in kinds if kind in KNOWN_KINDS), own_kind)


def describe_all_layers(model: torch.nn.Module, variables: dict[str, torch.Tensor]) -> list[LayerFacts]:
    """Describe the layers in the order of their definition, because a compiled model does not report its layers."""
    names = {id(tensor): name for name, tensor in variables.items()}
    return [describe_layer(path, layer, names) for path, layer in name_layers(model).items()]


def has_variables(module: torch.nn.Module) -> bool:
    """Check whether a module or a part of it has parameters or buffers."""
    return next(module.parameters(), next(module.buffers(), None)) is not None


def is_loss_function(module: torch.nn.Module, returned: object) -> bool:
    """Check whether a module is a loss function of the script's own: without parameters, it returns only numbers.

    A model that computes its own loss returns the loss, too.
    """
    tensors = [tensor for _, tensor in name_tensors(returned)]
    has_parameters = next(module.parameters(), None) is not None
    return bool(tensors) and not has_parameters and all(not tensor.ndim for tensor in tensors)
