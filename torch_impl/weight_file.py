"""Files with the weights of a user's model: safetensors, also in shards, and state dicts of torch.save."""

import re
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import save_file

from common.errors import UserError, build_write_error
from common.map.description import Arrays
from common.models.loaded_weights import LoadedWeights, check_names, fit_types, list_names
from common.models.tensor_names import match_names
from common.models.weight_files import read_safetensors
from common.models.weight_shards import INDEX_SUFFIXES, read_index
from torch_impl.described_state import get_state
from torch_impl.state_dict import read_state_dict

SAFETENSORS = ".safetensors"


def load_weight_file(model: torch.nn.Module, location: str, path: Path) -> LoadedWeights:
    """Load a file into a model, after checks of all names, shapes, types and values.

    Args:
        model: The model.
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the file.

    Raises:
        UserError: The file cannot be read without running code, or does not fit the model.
    """
    initial, names = read_weights(model), _list_names(model)
    parameters = dict(model.named_parameters())
    aliases = {alias for group in names.values() for alias in group}
    if unsaved := [name for name in parameters if name not in aliases]:
        raise UserError(f"{location}: does not restore {list_names(unsaved)}; let the model save these variables")
    untied = [name for name, group in names.items() if len(group) == 1 and name in parameters]
    # The file of a wrapped model has another prefix before all names; `match_names` corrects it
    stored, note = match_names(location, _read_tensors(location, path), untied or list(names))
    notes = [note] if note else []
    chosen = _choose_tensors(location, stored, names)
    kept_names = [name for name in names if name not in chosen and initial[name].dtype.kind in "iub"]
    if kept_names:
        notes.append(f"{list_names(kept_names)}: not in the file; PyTorch's model keeps its own values")
    unknown = {name: array for name, array in stored.items() if name not in aliases}  # the model saves no such names
    repeated = [name for name, array in unknown.items() if _is_repetition(name, array, initial, chosen)]
    if repeated:
        notes.append(f"{list_names(repeated)}: left out, because the model has the same values already")
    ignored = [name for name in unknown if name not in repeated and _is_ignored(name, model)]
    if ignored:
        notes.append(f"{list_names(ignored)}: left out, as transformers does")
    unexplained = [name for name in unknown if name not in (*repeated, *ignored)]
    check_names(location, [*chosen, *unexplained], [name for name in names if name not in kept_names])
    loaded = fit_types(location, chosen, initial)
    tensors = {alias: _to_tensor(array) for name, array in loaded.arrays.items() for alias in names[name]}
    model.load_state_dict(tensors, strict=False)
    return LoadedWeights(read_weights(model), [*notes, *loaded.notes])


def save_weight_file(model: torch.nn.Module, location: str, path: Path) -> None:
    """Save the weights of a model. A file of safetensors has tied weights under their first name only.

    Args:
        model: The model.
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the file.

    Raises:
        UserError: The file cannot be written.
    """
    state_dict = model.state_dict()
    try:
        if path.suffix == SAFETENSORS:
            tensors = {name: state_dict[name].contiguous() for name in _list_names(model)}
            save_file(tensors, path, metadata={"format": "pt"})
        else:
            torch.save(state_dict, path)
    except Exception as error:
        raise build_write_error(location, error) from error


def read_weights(model: torch.nn.Module) -> Arrays:
    """Return copies of the parameters, tied ones once, and of the buffers by name, in their own types."""
    return {name: _to_array(tensor.detach()).copy() for name, tensor in get_state(model).items()}


def set_weights(model: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Set some of the parameters and buffers."""
    tensors = get_state(model)
    with torch.no_grad():
        for name, array in arrays.items():
            tensors[name].copy_(_to_tensor(array))


def _list_names(model: torch.nn.Module) -> dict[str, list[str]]:
    """Return all names of each tensor of the state dict, by its first name. A tied tensor has several names."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            names.setdefault(id(tensor), []).append(name)
    return {group[0]: group for group in names.values()}


def _read_tensors(location: str, path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file, or of all shards of an index."""
    if not path.name.endswith(INDEX_SUFFIXES):
        return _read_file(location, path)
    index = read_index(location, path)
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted({shard for shards in index.values() for shard in shards}):
        tensors |= {name: array for name, array in _read_file(location, shard).items() if index.get(name) == [shard]}
    if missing := [name for name in index if name not in tensors]:
        raise UserError(f"{location}: its files have no {list_names(missing)}; fetch or save all shards again")
    return tensors


def _read_file(location: str, path: Path) -> dict[str, np.ndarray]:
    if path.suffix == SAFETENSORS:
        return read_safetensors(f"{location}:", path)
    return {name: _to_array(tensor) for name, tensor in read_state_dict(location, str(path)).items()}


def _choose_tensors(
    location: str, stored: Mapping[str, np.ndarray], names: Mapping[str, list[str]]
) -> dict[str, np.ndarray]:
    """Return the stored tensors by first name. Raise UserError if the file has different values for a tied tensor."""
    chosen = {}
    for first, aliases in names.items():
        present = [alias for alias in aliases if alias in stored]
        for alias in present[1:]:
            if not np.array_equal(stored[alias], stored[present[0]]):
                raise UserError(
                    f"{location}: {present[0]} and {alias} differ, and the model has one tensor for both; let the "
                    "factory build the model of this file"
                )
        if present:
            chosen[first] = stored[present[0]]
    return chosen


def _is_repetition(name: str, array: np.ndarray, initial: Arrays, chosen: Mapping[str, np.ndarray]) -> bool:
    """Check whether a tensor that the model does not save equals a buffer of the model, or repeats another tensor.

    A tensor whose elements are all equal, such as a bias of zeros, does not count as a repetition.
    """
    if name in initial:
        return np.array_equal(initial[name], array)
    return len(np.unique(array)) > 1 and any(np.array_equal(array, other) for other in chosen.values())


def _is_ignored(name: str, model: torch.nn.Module) -> bool:
    """Check whether a model of transformers ignores a tensor, such as the causal masks in old files of GPT-2."""
    patterns = {
        pattern
        for module in model.modules()
        for pattern in getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    }
    return any(re.search(pattern, name) for pattern in patterns)


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _to_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
