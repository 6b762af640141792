"""State dicts that a user's program saved with torch.save, alone or as one entry of a checkpoint."""

import pickle
from collections.abc import Mapping

import torch

from common.errors import UserError, describe_error

EXTRA_STATE = "_extra_state"  # suffix of entries from Module.get_extra_state, which need not be tensors


def read_state_dict(location: str, path: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict by name.

    Args:
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the file.

    Raises:
        UserError: The file cannot be read without running code, or has no state dict, or several.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # PyTorch's own message recommends to run the code in the file
        raise UserError(
            f"{location}: has objects other than tensors, or is damaged; save model.state_dict()"
        ) from error
    except Exception as error:
        raise UserError(f"{location}: cannot be read ({describe_error(error)}); save model.state_dict()") from error
    state_dicts = {"": content} if _is_state_dict(content) else {}
    if not state_dicts and isinstance(content, Mapping):
        state_dicts = {str(name): value for name, value in content.items() if _is_state_dict(value)}
    if not state_dicts:
        raise UserError(f"{location}: is not a state dict; save model.state_dict()")
    if len(state_dicts) > 1:
        raise UserError(f"{location}: has several state dicts, {', '.join(state_dicts)}; save one of them as a file")
    (state_dict,) = state_dicts.values()
    return {name: tensor for name, tensor in state_dict.items() if isinstance(tensor, torch.Tensor)}


def find_aliases(model: torch.nn.Module) -> dict[str, str]:
    """Return the first name of each tied parameter or buffer by each of its other names in a state dict."""
    first_names: dict[int, str] = {}
    named_tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {
        name: first for name, tensor in named_tensors if (first := first_names.setdefault(id(tensor), name)) != name
    }


def _is_state_dict(value: object) -> bool:
    """Check whether a value maps names to tensors."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(
        isinstance(name, str) and (isinstance(entry, torch.Tensor) or name.endswith(EXTRA_STATE))
        for name, entry in value.items()
    )
