"""Observer of the layers that a forward pass enters: what they receive and return, and how they are nested."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from common.recording.flattened_axes import find_flattened
from common.recording.record_format import LayerFacts
from tf_impl.record.layer_attributes import keep_attributes
from tf_impl.record.layer_order import order_layers
from tf_impl.record.layer_sources import LayerSources
from tf_impl.record.model_facts import (
    COMPOSITE_KINDS,
    RECURRENT_KINDS,
    Layer,
    describe_layer,
    get_kind,
    has_own_variables,
    list_parts,
    make_unique,
)
from tf_impl.record.tensors import Arrays, Copies, first_tensor, is_eager, name_tensors, replace_tensors, to_array

if TYPE_CHECKING:  # Python 3.9 cannot compute the union
    # (facts, received, returned) of a layer -> the recorded input of its counterpart, or None
    ConvertInput = Callable[[LayerFacts, np.ndarray, np.ndarray], np.ndarray | None]
PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum")
STOPPING = ("StopGradient", "PreventGradient")  # operations through which no gradient flows
RANDOM_KINDS = ("Dropout", "Random", "Gaussian")  # in the names of kinds of layers that draw random numbers
# Layers with an activation. Their recorded output is the activation's input, because PyTorch's layers have none.
ACTIVATED_KINDS = {"Dense", "EinsumDense"} | {
    f"{kind}{n}D{suffix}"
    for n in (1, 2, 3)
    for kind in ("Conv", "DepthwiseConv", "SeparableConv")
    for suffix in ("", "Transpose")
}


class LayerObserver:
    """Observer of one forward pass of a model.

    Attributes:
        facts: The layers in the order in which the pass entered them. `describe_layers` fills in their variables.
        layers: The layers by path.
        draws: For the path of each layer that drew random numbers, the states of its seed generators before the call.
        arrays: The first tensor that each layer received and returned, by its name in a record.
        convert_input: Returns the recorded input of a layer's counterpart. None in a real step, which must not compute
            layers again, and if no record is followed.
        name_tensor: Receives each of these tensors with its name; None if nobody wants them.
    """

    def __init__(self, model: Layer, copies: Copies, see: Callable[[Callable[[], None]], None]) -> None:
        """Prepare to observe.

        Args:
            model: The model.
            copies: Copies the tensors.
            see: Calls a function of the observer, and keeps its errors from a real step.
        """
        self.facts: list[LayerFacts] = []
        self.layers: dict[str, Layer] = {}
        self.draws: dict[str, list[np.ndarray]] = {}
        self.arrays: Arrays = {}
        self.convert_input: ConvertInput | None = None
        self.name_tensor: Callable[[str, tf.Tensor], None] | None = None
        self._copies, self._see = copies, see
        self._paths: dict[int, str] = {id(model): "model"}
        self._sources = LayerSources()
        self._stack: list[Layer] = []  # the layers that the pass is in
        # The axes that a reshape has merged, with each result that has one axis for them, by its identity
        self._merged: dict[int, tuple[weakref.ref[tf.Tensor], tuple[int, ...]]] = {}

    def call(self, original: Callable[..., object], layer: Layer, args: Sequence[object], kwargs: dict) -> object:
        """Call a layer, and record the call if it is the first one of this layer."""
        if any(get_kind(outer) in RECURRENT_KINDS for outer in self._stack):
            return original(layer, *args, **kwargs)  # one time step of the recurrent layer
        received = first_tensor([args, kwargs])
        if not (is_eager(received) and tf.executing_eagerly()):
            return original(layer, *args, **kwargs)  # a symbolic call, or one with numbers, which builds the layer
        path = self._find_path(layer)
        is_first = path not in self.layers
        if is_first:
            self.layers[path] = layer
            self._see(lambda: self._enter(layer, path, args, kwargs))
        self._stack.append(layer)
        activation, states = _Activation(layer) if is_first else None, []
        if is_first:
            self._see(lambda: states.extend(_read_states(layer)))
        try:
            returned = original(layer, *args, **kwargs)
        finally:
            self._leave(layer, activation)
        if get_kind(layer) == "TimeDistributed":
            self._see(lambda: self._add_part(layer.layer, received))
        if has_own_variables(layer) or get_kind(layer) in RECURRENT_KINDS:
            self._sources.add_layer(path, name_tensors(returned).values())
        if states:
            self._see(lambda: self._note_draws(layer, path, states))
        if activation is not None and _is_symbolic(returned):
            self._forget(path)
        elif activation is not None:
            output = first_tensor(returned) if activation.received is None else activation.received
            self._see(lambda: self._copy(f"layer/{path}/output", output, returned))
            self._see(lambda: self._follow(original, layer, args, kwargs, output))
        return returned

    def wrap(self, original: Callable[..., object]) -> Callable[..., object]:
        """Return how a layer is called: by `original`, and observed."""
        return lambda layer, *args, **kwargs: self.call(original, layer, args, kwargs)

    def _note_draws(self, layer: Layer, path: str, states: list[np.ndarray]) -> None:
        """Remember `states`, the states of a layer's generators before its call, if the call has changed them."""
        if any(map(np.any, map(np.subtract, states, _read_states(layer)))):
            self.draws[path] = states

    def reshape(self, original: Callable[..., tf.Tensor], args: Sequence[object], kwargs: dict) -> tf.Tensor:
        """Call tf.reshape, and remember the axes that the model merges."""
        returned = original(*args, **kwargs)
        before: Any = getattr(args[0] if args else kwargs["tensor"], "shape", None)
        # A layer with variables reshapes its weights, not what another layer receives.
        reshapes_weights = self._stack and has_own_variables(self._stack[-1]) and get_kind(self._stack[-1]) != "Flatten"
        is_flat = before is not None and len(before) > len(returned.shape) > 1
        if is_flat and not reshapes_weights and (sizes := find_flattened(before, returned.shape)) is not None:
            self._merged[id(returned)] = weakref.ref(returned), sizes
        return returned

    def add_operation(self, name: str, received: Sequence[tf.Tensor], returned: Sequence[tf.Tensor]) -> None:
        """Let the results of a differentiable operation come from the layers that its inputs come from."""
        if name not in STOPPING:
            self._sources.add_operation(received, [tensor for tensor in returned if tensor.dtype.is_floating])
        # A product of matrices may have the shape of a flattened array, but not its features
        merged = {x.shape: sizes for x in received if name not in PRODUCTS and (sizes := self._find_merged(x))}
        for tensor in returned if merged else ():
            if tensor.shape in merged and not self._find_merged(tensor):
                self._merged[id(tensor)] = weakref.ref(tensor), merged[tensor.shape]

    @property
    def is_within_layer(self) -> bool:
        """Return whether a layer computes now."""
        return bool(self._stack)

    @property
    def path(self) -> str:
        """The path of the innermost layer that computes now; empty if none does."""
        return self._find_path(self._stack[-1]) if self._stack else ""

    def _enter(self, layer: Layer, path: str, args: Sequence[object], kwargs: dict) -> None:
        facts = describe_layer(layer, path, {})
        received = first_tensor([args, _order_arguments(layer, kwargs)])
        if self._stack and get_kind(self._stack[-1]) in COMPOSITE_KINDS:
            facts["composite"] = self._find_path(self._stack[-1])
        if sizes := self._find_merged(received):
            facts["unflattened_shape"] = list(sizes)
        training = _get_training(layer, args, kwargs)
        outer = [known for known in self.facts if self._stack and self.layers[known["path"]] is self._stack[-1]]
        facts["training"] = bool(outer and outer[0]["training"]) if training is None else bool(training)
        if "BatchNormalization" in facts["kind"] and not layer.trainable:
            facts["training"] = False  # whatever it is called with; variables of it that are frozen do not matter
        outer_attributes = vars(self._stack[-1]).items() if self._stack else ()
        if attribute := next((name for name, value in outer_attributes if value is layer), ""):
            facts["attribute"] = attribute
        if sources := self._sources.find(received):
            facts["sources"] = sorted(sources)
        self.facts.append(facts)
        self._copy(f"layer/{path}/input", None, received)

    def _add_part(self, layer: Layer, received: tf.Tensor) -> None:
        """Add the layer of a TimeDistributed, which calls its `call` and not the layer. Only its input is recorded."""
        path = self._find_path(layer)
        if path not in self.layers and has_own_variables(layer):
            self.layers[path] = layer
            self.facts.append(describe_layer(layer, path, {}))
            self._copy(f"layer/{path}/input", None, received)

    def _find_merged(self, tensor: object) -> tuple[int, ...]:
        """Return the sizes of the axes that the model has merged to one of a tensor's; empty if it has not."""
        reference, sizes = self._merged.get(id(tensor), (None, ()))
        return sizes if reference is not None and reference() is tensor else ()

    def _forget(self, path: str) -> None:
        """Forget a call that builds the layer: it received numbers but returned none."""
        del self.layers[path]
        self.facts = [facts for facts in self.facts if facts["path"] != path]
        self.arrays.pop(f"layer/{path}/input", None)
        self.draws.pop(path, None)

    def _leave(self, layer: Layer, activation: _Activation | None) -> None:
        self._stack.remove(layer)
        if activation is not None:
            activation.restore()

    def _follow(
        self,
        original: Callable[..., object],
        layer: Layer,
        args: Sequence[object],
        kwargs: dict,
        output: tf.Tensor | None,
    ) -> None:
        """Record the output of a layer for the recorded input of its counterpart, if that is known."""
        floats = {name: x for name, x in name_tensors([args, kwargs]).items() if x.dtype.is_floating}
        is_random = any(name in get_kind(layer) for name in RANDOM_KINDS) or self._find_path(layer) in self.draws
        if self.convert_input is None or len(floats) != 1 or output is None or is_random or list_parts(layer):
            return
        ((name, received),) = floats.items()
        facts = next(facts for facts in self.facts if self.layers[facts["path"]] is layer)
        followed = self.convert_input(facts, to_array(received), to_array(output))
        if followed is None:
            return
        args, kwargs = replace_tensors([[*args], kwargs], {name: tf.cast(followed, received.dtype)})
        statistics = [(variable, to_array(variable)) for variable in layer.non_trainable_variables]
        attributes, losses, activation = keep_attributes([layer]), [*layer._losses], _Activation(layer)
        self._stack.append(layer)
        try:
            returned = original(layer, *args, **kwargs)
        finally:
            self._leave(layer, activation)
            layer._losses[:] = losses  # without that of an activity regularizer, which the step would add
            for variable, array in statistics:  # a later call of the model may use them
                variable.assign(array)
            attributes.restore()
        self._copy(f"followed/{facts['path']}", activation.received, returned)

    def _copy(self, name: str, preferred: tf.Tensor | None, nested: object) -> None:
        tensor = first_tensor(nested) if preferred is None else preferred
        if tensor is not None:
            self.arrays.update(self._copies.copy({name: tensor}))
            if self.name_tensor is not None:
                self.name_tensor(name, tensor)

    def _find_path(self, layer: Layer) -> str:
        if id(layer) not in self._paths:
            taken = dict.fromkeys(self._paths.values())
            self._paths[id(layer)] = make_unique(getattr(layer, "path", None) or layer.name, taken)
        return self._paths[id(layer)]


def _read_states(layer: Layer) -> list[np.ndarray]:
    """Return the states of a layer's own seed generators, which Keras 3 advances when they draw."""
    return [to_array(generator.state).astype(np.int64) for generator in getattr(layer, "_seed_generators", ())]


class _Activation:
    """The activation of a layer, replaced during a call of the layer by a function that keeps what it receives."""

    def __init__(self, layer: Layer) -> None:
        self.received: tf.Tensor | None = None
        self._attributes: dict[str, Any] = layer.__dict__
        self._original = self._attributes.get("activation") if get_kind(layer) in ACTIVATED_KINDS else None
        if self._original is not None:
            self._attributes["activation"] = self._record

    def restore(self) -> None:
        """Give the layer its activation back."""
        if self._original is not None:
            self._attributes["activation"] = self._original

    def _record(self, inputs: tf.Tensor) -> tf.Tensor:
        self.received = inputs
        assert self._original is not None
        return self._original(inputs)


def _is_symbolic(nested: object) -> bool:
    tensor = first_tensor(nested)
    return tensor is not None and not is_eager(tensor)


def _order_arguments(layer: Layer, kwargs: dict) -> dict:
    """Return keyword arguments in the order of the parameters of the layer, whatever their order in the call."""
    names = [name for name in inspect.signature(layer.call).parameters if name in kwargs]
    return {name: kwargs[name] for name in dict.fromkeys([*names, *kwargs])}


def _get_training(layer: Layer, args: Sequence[object], kwargs: dict) -> object:
    parameters = list(inspect.signature(layer.call).parameters)
    position = parameters.index("training") if "training" in parameters else len(args)
    return kwargs.get("training", args[position] if position < len(args) else None)


def describe_layers(observed: LayerObserver | None, names: Mapping[int, str]) -> list[LayerFacts]:
    """Describe the layers that a pass entered, now that they have their variables; none without an observed pass.

    Args:
        observed: The observer of the pass.
        names: The names of the model's variables by identity.
    """
    facts = observed.facts if observed is not None else []
    for layer in facts:
        assert observed is not None
        layer["variables"] = describe_layer(observed.layers[layer["path"]], layer["path"], names)["variables"]
    if observed is None:
        return facts
    return order_layers(observed.layers, observed.arrays, facts, list(names.values()))
