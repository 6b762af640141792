"""A device "simulated" that computes on the CPU, and refuses operations on tensors of two devices as a GPU does.

Its tensors wrap tensors of the CPU. The backend is not for public use, and a process keeps it: use another process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from typing_extensions import override

_setup_privateuseone_for_python_backend("simulated")
torch.simulated.get_amp_supported_dtype = lambda: []  # type: ignore[attr-defined]  # for autocast, although it is off
DEVICE = torch.device("simulated", 0)
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}  # from one device to another
# Operations on packed sequences, whose lengths and sizes of batches are on the CPU for a GPU, too
PACKING = {aten._pack_padded_sequence.default, aten._pad_packed_sequence.default}  # these return them second
PACKED = {*PACKING, aten.lstm.data, aten.gru.data}


class SimulatedTensor(torch.Tensor):
    """A tensor of the simulated device. `content` is its content, on the CPU."""

    content: torch.Tensor

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> "SimulatedTensor":
        tensor: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls, content.size(), content.stride(), content.storage_offset(), dtype=content.dtype, device=DEVICE
        )
        tensor.content = content
        return tensor

    def __init__(self, content: torch.Tensor) -> None:
        """Do nothing: the tensor is complete."""

    @override
    def tolist(self) -> Any:
        return self.cpu().tolist()  # PyTorch has none for subclasses

    @classmethod
    @override
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(func, args, kwargs or {})  # in a thread without the mode


class SimulatedDevice(TorchDispatchMode):
    """A mode in which tensors of the simulated device can be created. It is one of a thread."""

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU. Raise RuntimeError if its tensors are on two devices."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    simulated = [tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)]
    device = kwargs.get("device")
    is_simulated = bool(simulated) if device is None else torch.device(device).type == DEVICE.type
    if func not in COPIES:
        _check_one_device(func, tensors, len(simulated))
    elif func is aten.copy_.default:
        is_simulated = isinstance(args[0], SimulatedTensor)
    wrappers = {id(tensor.content): tensor for tensor in simulated}

    def wrap(value: object) -> object:
        if not isinstance(value, torch.Tensor) or not is_simulated:
            return value
        return wrappers[id(value)] if id(value) in wrappers else SimulatedTensor(value)

    on_cpu = {"device": torch.device("cpu")} if "device" in kwargs else {}
    unwrapped_args, unwrapped_kwargs = tree_map(_unwrap, (args, {**kwargs, **on_cpu}))
    returned = REPLACEMENTS.get(func, func)(*unwrapped_args, **unwrapped_kwargs)
    if func in PACKING:
        return wrap(returned[0]), returned[1]
    return tree_map(wrap, returned)


def _unwrap(value: object) -> object:
    return value.content if isinstance(value, SimulatedTensor) else value


def _check_one_device(func: object, tensors: Sequence[torch.Tensor], simulated: int) -> None:
    """Raise RuntimeError if tensors of the CPU take part beside simulated ones. Single numbers may, as on a GPU."""
    is_fused = "_fused" in str(func)
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, SimulatedTensor) and (tensor.dim() or is_fused)]
    if simulated and on_cpu and func not in PACKED:
        raise RuntimeError(f"{func}: at least two devices, cpu and {DEVICE}, for a tensor {[*on_cpu[0].shape]}")


def _compute_lstm_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cell: torch.Tensor, *biases: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the hidden state, the cell and the gates of an LSTM. Only GPUs have this operation."""
    gates = input_gates + hidden_gates + sum(biases)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new_cell = f * cell + i * g
    return o * new_cell.tanh(), new_cell, torch.cat([i, f, g, o], 1)


def _compute_lstm_gradients(
    hidden_gradient: torch.Tensor | None,
    cell_gradient: torch.Tensor | None,
    cell: torch.Tensor,
    new_cell: torch.Tensor,
    gates: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the gates, of the cell and of a bias."""
    i, f, g, o = gates.chunk(4, 1)
    zeros, squashed = torch.zeros_like(cell), new_cell.tanh()
    of_hidden = zeros if hidden_gradient is None else hidden_gradient
    of_cell = of_hidden * o * (1 - squashed**2) + (zeros if cell_gradient is None else cell_gradient)
    of_gates = torch.cat(
        [
            of_cell * g * i * (1 - i),
            of_cell * cell * f * (1 - f),
            of_cell * i * (1 - g**2),
            of_hidden * squashed * o * (1 - o),
        ],
        1,
    )
    return of_gates, of_cell * f, of_gates.sum(0) if has_bias else None


REPLACEMENTS: dict[object, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _compute_lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _compute_lstm_gradients,
}
