"""Follow one forward pass of any module: which layers it enters, what they receive and return, what is flattened."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from common.map.description import Call
from common.map.factory import plain_attributes
from common.map.nested import replaced
from common.map.torch_parts import KINDS

RESHAPES = {"flatten", "view", "reshape"}
OF_DROPOUT = ("input", "p", "training")  # the arguments of functions
OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
ATTRIBUTES = {
    "eps": "epsilon",
    "momentum": "momentum",
    "groups": "groups",
    "stride": "stride",
    "dilation": "dilation",
    "padding_idx": "padding_idx",
}


class Trace:
    """Use it as a context around the forward pass.

    entered: the layers in the order in which they were entered, by path. flattened: of a layer, the shape of an example
    before it was flattened to what the layer receives. calls: the first of each layer. noise: layers that drop by
    calling functions, which drop nothing here.

    given: of some layers, the first calls of their counterparts in another model. Such a layer computes on what its
    counterpart received, and the model goes on with what that returned; `calls` has what the layer itself received from
    the layers before it, and what it computed.
    """

    def __init__(self, model: torch.nn.Module, given: Mapping[str, Call] | None = None) -> None:
        self.entered: dict[str, torch.nn.Module] = {}
        self.flattened: dict[str, tuple[int, ...]] = {}
        self.calls: dict[str, Call] = {}
        self.noise: list[str] = []
        self._inside: list[str] = []
        self._model, self._given = model, given or {}
        self._received: dict[str, np.ndarray | None] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}  # of examples before they were flattened, by their size
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> "Trace":
        for name, module in self._model.named_modules():
            path = name or "model"
            self._undo.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True).remove)
            self._undo.append(module.register_forward_hook(self._after(path), with_kwargs=True).remove)
        mode = _Functions(self._shapes, self._note)
        mode.__enter__()
        self._undo.append(lambda: mode.__exit__(None, None, None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in reversed(self._undo):
            undo()

    def _note(self, function: str) -> None:
        found = f"{self._inside[-1] if self._inside else 'model'} ({function})"
        if found not in self.noise:
            self.noise.append(found)

    def _before(self, path: str) -> Callable[..., None]:
        def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
            self._inside.append(path)
            if path in self.entered:
                return None
            self.entered[path] = module
            received = first_tensor((args, kwargs))
            if received is not None and received.dim() == 2 and received.shape[1] in self._shapes:
                self.flattened[path] = self._shapes[received.shape[1]]
                if kind_of(module) == "Linear":
                    del self._shapes[received.shape[1]]
            if path in self._given:
                self._received[path] = _array((args, kwargs), False)
                return replace_first((args, kwargs), self._given[path].received)
            return None

        return enter

    def _after(self, path: str) -> Callable[..., None]:
        def leave(module: torch.nn.Module, args: Any, kwargs: Any, returned: Any) -> Any:
            self._inside.pop()
            if path in self.calls:
                return None
            if path in self._given:
                self.calls[path] = Call(self._received.get(path), _array(returned, False))
                return replace_first(returned, self._given[path].returned)
            turned = getattr(module, "batch_first", True) is False
            self.calls[path] = Call(_array((args, kwargs), turned), _array(returned, turned))
            return None

        return leave


class _Functions(TorchFunctionMode):
    """Notes what is flattened and which functions drop, and drops nothing."""

    def __init__(self, shapes: dict[int, tuple[int, ...]], note: Callable[[str], None]) -> None:
        super().__init__()
        self.shapes, self.note = shapes, note

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), dict(kwargs or {})
        if "dropout" in name:
            named = dict(zip(OF_DROPOUT, args, strict=False)) | kwargs
            if named.get("p", 0.5) > 0 and named.get("training", named.get("train", True)):
                self.note(name)
            return named["input"]
        if name == "scaled_dot_product_attention":
            args, kwargs = (), dict(zip(OF_ATTENTION, args, strict=False)) | kwargs
            if kwargs.pop("dropout_p", 0.0) > 0:
                self.note(name)
        returned = function(*args, **kwargs)
        if name in RESHAPES and returned.dim() == 2:
            given = args[0] if args else kwargs["input"]
            if given.dim() >= 3 and len(returned) == len(given):
                self.shapes[returned.shape[1]] = tuple(given.shape[1:])
        return returned


def kind_of(layer: torch.nn.Module) -> str:
    """PyTorch's class that it is, or derives from, where that is a known one; else its own."""
    own = [each for each in type(layer).__mro__ if each.__module__.startswith("torch.") and each.__name__ in KINDS]
    return own[0].__name__ if own else type(layer).__name__


def attributes_of(layer: torch.nn.Module) -> dict[str, Any]:
    """What the pairing needs to know, and what errors may name."""
    return plain_attributes(layer, ATTRIBUTES)


def first_tensor(found: Any) -> torch.Tensor | None:
    """The first tensor of floats in nested containers, or else of other numbers."""
    tensors = [each for each in tensors_of(found).values()]
    floats = [each for each in tensors if each.is_floating_point()]
    return next(iter(floats or tensors), None)


def tensors_of(found: Any, name: str = "output") -> dict[str, torch.Tensor]:
    """The tensors in nested containers by name, such as output[0] or output.logits."""
    if isinstance(found, torch.Tensor):
        return {name: found}
    if isinstance(found, Mapping):
        pairs = [(f"{name}.{key}", value) for key, value in found.items()]
    elif isinstance(found, list | tuple):
        pairs = [(f"{name}[{index}]", value) for index, value in enumerate(found)]
    else:
        return {}
    return {key: tensor for path, value in pairs for key, tensor in tensors_of(value, path).items()}


def replace_first(found: Any, array: np.ndarray | None) -> Any:
    """Nested tuples with their `first_tensor` replaced where the array has its shape."""
    first = first_tensor(found)
    if array is None or first is None or tuple(first.shape) != array.shape:
        return found
    return replaced(found, first, torch.from_numpy(array).to(first.dtype))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Without its gradient, and halves as float32, which NumPy has."""
    return tensor.detach().float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.detach()


def _array(found: Any, turned: bool) -> np.ndarray | None:
    """turned: whether its first two axes are time and batch."""
    tensor = first_tensor(found)
    if tensor is None:
        return None
    array = widened(tensor).numpy().copy()
    return array.swapaxes(0, 1) if turned and array.ndim == 3 else array
