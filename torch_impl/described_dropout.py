"""Dropout of a user's model: which layers can be aligned, and a model without dropout for common.map."""

import torch

from torch_impl.attention import UnfoldedAttention
from torch_impl.dropout import ALIGNED_CLASSES


def find_dropouts(model: torch.nn.Module) -> tuple[dict[str, float], list[str]]:
    """Return the rates of the dropout layers that `align_dropout` replaces, by path, and all other layers that drop.

    An unfolded attention does not count, because the dropout layer inside it does.
    """
    rates, others = {}, []
    for name, module in model.named_modules():
        # Attentions and recurrent layers have their rate in `dropout`.
        rate = getattr(module, "p" if "Dropout" in type(module).__name__ else "dropout", 0.0)
        if isinstance(rate, float) and rate > 0 and not isinstance(module, UnfoldedAttention):
            if type(module) in ALIGNED_CLASSES:
                rates[name or "model"] = rate
            else:
                others.append(f"{name or 'model'} ({type(module).__name__})")
    return rates, others


def disable_dropout(model: torch.nn.Module) -> None:
    """Set all dropout rates to 0, because the two frameworks draw different masks.

    A ForwardTrace disables dropout that is not a layer but a function.
    """
    for module in model.modules():
        for name in ("dropout", *(["p"] if "Dropout" in type(module).__name__ else [])):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
