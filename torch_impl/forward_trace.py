"""A trace of one forward pass of any module: its layers, what they receive and return, and which inputs are flattened.

The two frameworks flatten images in different orders, so common.map must know the shapes before flattening. The path of
a layer is its name in the model.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from common.map.containers import order_arguments
from common.map.description import MOST_CALLS, RecordedCall, name_call
from common.map.keras_attributes import is_composite, is_keras_layer, is_recurrent
from common.map.reshaped_features import find_reshaped_layers
from common.recording.flattened_axes import find_flattened
from torch_impl.keras_module import KerasModule
from torch_impl.keras_observation import ActivationRecorder, patch_keras_dropout
from torch_impl.layer_attributes import get_layer_kind
from torch_impl.nested_tensors import first_tensor, replace_first_tensor, to_array
from torch_impl.unregistered_modules import list_unregistered

RESHAPES = {"flatten", "unflatten", "view", "reshape"}
DROPOUT_PARAMETERS = ("input", "p", "training")  # the parameters of the dropout functions in torch.nn.functional
# The parameters of scaled_dot_product_attention.
ATTENTION_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class ForwardTrace:
    """A context manager around one forward pass of a model that records what the pass does.

    `replacements` can hold, for a layer, the calls of its counterpart in another model. The layer then computes on the
    counterpart's input, and the layers after it receive the counterpart's output. `calls` still records the layer's own
    input, from the layers before it, and its own output.

    Dropout functions drop nothing within the context.

    Attributes:
        entered: The layers by path, in the order in which the pass entered them; then the layers that it did not enter,
            but whose parameters it read.
        composites: The path of Keras's attention or Bidirectional around a layer, by the path of the layer.
        unflattened_shapes: The shape of one example before it was flattened, by the path of the layer that receives it.
        reshaped_shapes: The shape of one example after the model divided the features that a linear layer returned into
            several axes, by the path of the linear layer. Layers in between have it in `unflattened_shapes`.
        calls: The first call of each layer, by path; for requested `paths` also the next calls, by the path with the
            number of the call. The recorded output of a Keras layer with an activation is the input of the activation,
            as on the TensorFlow side.
        counts: The number of calls of each layer, by path.
        noise: Layers that drop by calling functions instead of dropout layers, as "path (function)".
    """

    def __init__(
        self,
        model: torch.nn.Module,
        replacements: Mapping[str, RecordedCall] | None = None,
        paths: Collection[str] | None = None,
    ) -> None:
        """Prepare to trace a model.

        Args:
            model: The model.
            replacements: The calls of counterparts, by the path of the layer in this model, with the call's number.
            paths: The paths of the layers whose calls are recorded; None records all.
        """
        self.entered: dict[str, torch.nn.Module] = {}
        self.composites: dict[str, str] = {}
        self.unflattened_shapes: dict[str, tuple[int, ...]] = {}
        self.reshaped_shapes: dict[str, tuple[int, ...]] = {}
        self.calls: dict[str, RecordedCall] = {}
        self.counts: Counter[str] = Counter()
        self.noise: list[str] = []
        self._stack: list[str] = []  # the paths of the layers that the pass is in
        # The activations of the Keras layers that the pass is in, by the path of the layer.
        self._activations: dict[str, ActivationRecorder] = {}
        self._read: dict[str, torch.nn.Module] = {}  # the layers whose parameters were arguments of functions, by path
        self._owners: dict[int, tuple[str, torch.nn.Module]] = {}  # the layer of each parameter, by the parameter's id
        self._model, self._replacements, self._recorded = model, replacements or {}, paths
        # The inputs that layers with replacements would have received without the replacements, by path.
        self._received: dict[str, np.ndarray | None] = {}
        self._shapes: dict[tuple[int, ...], tuple[int, ...]] = {}  # merged axes by the shape [n, ...] with one for them
        self._undo: list[Callable[[], None]] = []  # functions that remove the hooks and patches of this trace

    def __enter__(self) -> "ForwardTrace":
        modules = dict(self._model.named_modules())
        if not isinstance(self._model, KerasModule):  # Keras registers the layers in its lists itself
            modules |= list_unregistered(self._model)
        for name, module in modules.items():
            path = name or "model"
            self._undo.append(module.register_forward_pre_hook(self._make_pre_hook(path), with_kwargs=True).remove)
            self._undo.append(module.register_forward_hook(self._make_hook(path), with_kwargs=True).remove)
        if isinstance(self._model, KerasModule):
            self._undo.append(patch_keras_dropout(self._record_noise))
        if not isinstance(self._model, KerasModule):  # Keras keeps the parameters of a layer in a module of its own
            self._owners = {
                id(parameter): (name, module)
                for name, module in self._model.named_modules()
                for parameter in module.parameters(recurse=False)
            }
        observer = _FunctionObserver(self._record_reshape, self._record_noise, self._record_parameter)
        observer.__enter__()
        self._undo.append(lambda: observer.__exit__(None, None, None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for undo in (*(activation.restore for activation in self._activations.values()), *reversed(self._undo)):
            undo()
        for path, module in self._read.items():
            self.entered.setdefault(path, module)

    def _record_noise(self, function: str) -> None:
        source = f"{self._stack[-1] if self._stack else 'model'} ({function})"
        if source not in self.noise:
            self.noise.append(source)

    def _record_parameter(self, tensor: object) -> None:
        """Record the layer that owns a parameter among the arguments of a function."""
        path, module = self._owners.get(id(tensor), ("", None))
        is_in_attention = bool(self._stack) and get_layer_kind(self.entered[self._stack[-1]]) == "MultiheadAttention"
        if module is not None and path and not is_in_attention:
            self._read.setdefault(path, module)

    def _record_reshape(self, before: torch.Size, after: torch.Size) -> None:
        """Record that the model flattened examples, or divided their features into several axes."""
        if len(before) > len(after) > 1 and (sizes := find_flattened(before, after)) is not None:
            self._shapes[tuple(after)] = sizes
        if len(after) >= 3 and len(before) == 2 and after[0] == before[0]:
            linear_paths = [path for path, layer in self.entered.items() if get_layer_kind(layer) == "Linear"]
            linear_path, later_paths = find_reshaped_layers(self.calls, linear_paths, tuple(before))
            if linear_path is not None:
                self.reshaped_shapes.setdefault(linear_path, tuple(after[1:]))
                self.unflattened_shapes |= dict.fromkeys(later_paths, tuple(after[1:]))

    def _record_entry(
        self, module: torch.nn.Module, path: str, outer: str | None, received: torch.Tensor | None
    ) -> None:
        if outer is not None and is_composite(self.entered[outer]):
            self.composites[path] = outer
        if received is not None and (shape := tuple(received.shape)) in self._shapes:
            self.unflattened_shapes[path] = self._shapes[shape]
            if get_layer_kind(module) == "Linear":  # later inputs of this shape come from a Linear layer
                del self._shapes[shape]

    def _is_recorded(self, path: str, call_path: str) -> bool:
        """Check whether a call is recorded: the first one if all layers are recorded, or else the first few."""
        if self._recorded is None:
            return call_path not in self.calls and call_path == path
        return path in self._recorded and self.counts[path] <= MOST_CALLS

    def _make_pre_hook(self, path: str) -> Callable[..., object]:
        """Return the hook that PyTorch calls before the forward pass of the layer at this path."""

        def enter(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            outer = self._stack[-1] if self._stack else None
            self._stack.append(path)
            call_path = name_call(path, self.counts[path])
            replacement = self._replacements.get(call_path)
            is_first = path not in self.entered
            self.entered.setdefault(path, module)
            kwargs = order_arguments(_get_call(module), kwargs)
            received = first_tensor((args, kwargs))
            if is_first:
                self._record_entry(module, path, outer, received)
            if is_keras_layer(module):
                self._activations[path] = ActivationRecorder(module, replacement.returned if replacement else None)
            if replacement is None:
                return None
            self._received[call_path] = _swap_received(module, to_array(received))
            return replace_first_tensor((args, kwargs), _swap_received(module, replacement.received))

        return enter

    def _make_hook(self, path: str) -> Callable[..., object]:
        """Return the hook that PyTorch calls after the forward pass of the layer at this path."""

        def leave(
            module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], returned: object
        ) -> object:
            self._stack.pop()
            call_path = name_call(path, self.counts[path])
            self.counts[path] += 1
            activation = self._activations.pop(path, None)
            pre_activation = activation.restore() if activation else None
            replacement = self._replacements.get(call_path)
            if self._is_recorded(path, call_path):
                computed_tensor = first_tensor(returned) if pre_activation is None else pre_activation
                computed = _swap_axes(module, to_array(computed_tensor))
                received_tensor = first_tensor((args, order_arguments(_get_call(module), kwargs)))
                received = _swap_received(module, to_array(received_tensor))
                received = received if replacement is None else self._received[call_path]
                self.calls[call_path] = RecordedCall(received, computed)
            if replacement is not None and pre_activation is None:
                return replace_first_tensor(returned, _swap_axes(module, replacement.returned))
            return None

        return leave


class _FunctionObserver(TorchFunctionMode):
    """A mode to which PyTorch passes every function call. It records reshapes, and disables dropout functions."""

    def __init__(
        self,
        record_reshape: Callable[[torch.Size, torch.Size], None],
        record_noise: Callable[[str], None],
        record_parameter: Callable[[object], None],
    ) -> None:
        super().__init__()
        self.record_reshape, self.record_noise, self.record_parameter = record_reshape, record_noise, record_parameter

    @override
    def __torch_function__(
        self,
        func: Callable[..., torch.Tensor],
        types: Sequence[type],
        args: tuple[Any, ...] = (),  # Any: the arguments of any PyTorch function
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        for argument in (*args, *kwargs.values()):
            self.record_parameter(argument)
        if "dropout" in name:
            named = dict(zip(DROPOUT_PARAMETERS, args, strict=False)) | kwargs
            if named.get("p", 0.5) > 0 and named.get("training", named.get("train", True)):
                self.record_noise(name)
            return named["input"]
        if name == "scaled_dot_product_attention":
            args, kwargs = (), dict(zip(ATTENTION_PARAMETERS, args, strict=False)) | kwargs
            if kwargs.pop("dropout_p", 0.0) > 0:
                self.record_noise(name)
        returned = func(*args, **kwargs)
        if name in RESHAPES:
            self.record_reshape((args[0] if args else kwargs["input"]).shape, returned.shape)
        return returned


def _get_call(module: Any) -> Callable[..., object]:  # noqa: ANN401  a layer of PyTorch or of Keras
    """Return the method that computes a layer. Its parameters have the names of the layer's arguments."""
    call: Callable[..., object] = module.call if is_keras_layer(module) else module.forward
    return call


def _swap_axes(module: torch.nn.Module, array: np.ndarray | None) -> np.ndarray | None:
    """Convert an array that a layer receives or returns to Keras's axes [n, time, features], or back.

    Only a layer with batch_first=False has other axes.
    """
    is_swapped = array is not None and array.ndim == 3 and getattr(module, "batch_first", True) is False
    return array.swapaxes(0, 1) if array is not None and is_swapped else array


def _swap_received(module: torch.nn.Module, array: np.ndarray | None) -> np.ndarray | None:
    """Convert an array that a layer receives as `_swap_axes` does, and to the order in which the layer reads it.

    A recurrent layer of Keras with `go_backwards` reads from the last time step to the first.
    """
    is_reversed = is_keras_layer(module) and is_recurrent(module) and getattr(module, "go_backwards", False)
    swapped = _swap_axes(module, array)
    return swapped[:, ::-1] if swapped is not None and is_reversed else swapped
