"""A mode that finds the operations for which a host waits for its device, as it waits for a GPU."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from typing_extensions import override

aten = torch.ops.aten
# Operations that return a number to the host, or a tensor whose size depends on the values of another.
WAITING = {
    aten._local_scalar_dense,
    aten.item,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_}  # with a mask, these call nonzero


class SynchronizationFinder(TorchDispatchMode):
    """A mode that lists the operations of a device type for which the host waits.

    Copies do not count if the device is the CPU.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.operations: list[str] = []

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if self._is_waiting_copy(func, tensors, kwargs) or self._needs_values(func, tensors, kwargs):
            self.operations.append(str(func))
        return func(*args, **kwargs)

    def _is_waiting_copy(self, func: Any, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        """Check whether an operation copies a tensor to the host, or to the device without `non_blocking`.

        `copy_` to the device does not count: the simulated device returns the results of collectives on the CPU.
        """
        if func is aten.copy_.default:
            target, source = tensors
            return target.device.type == "cpu" != source.device.type
        if func is not aten._to_copy.default or kwargs.get("device") is None:
            return False
        target_type, source_type = torch.device(kwargs["device"]).type, tensors[0].device.type
        return target_type != source_type and (target_type == "cpu" or not kwargs.get("non_blocking", False))

    def _needs_values(self, func: Any, tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> bool:
        """Check whether the host needs values of the device to complete an operation."""
        if self.device_type not in {tensor.device.type for tensor in tensors}:
            return False
        has_mask = any(tensor.dtype == torch.bool for tensor in tensors)
        has_unknown_size = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        operation = func.overloadpacket
        return operation in WAITING or has_unknown_size or (operation in INDEXING and has_mask)
