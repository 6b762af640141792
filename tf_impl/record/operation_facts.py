"""Description of the operations of TensorFlow and of the layers of Keras that count as one operation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from common.recording.array_norms import add_elements
from common.recording.index_notation import write_axis_index, write_flip, write_index, write_length
from common.recording.operation_format import MOST_ORDERED, TensorStatistics
from common.recording.record_format import name_call
from tf_impl.record.model_facts import COMPOSITE_KINDS, RECURRENT_KINDS, Layer, get_kind, list_parts

try:
    from tensorflow.python.framework import op_callbacks, op_def_registry
except ImportError:  # a later version of TensorFlow
    op_callbacks = op_def_registry = None

KERAS_PACKAGES = ("keras", "tf_keras", "keras_hub", "keras_nlp", "keras_cv")
MAX_SIZE = 1 << 26  # number of elements up to which a tensor has statistics
# Layers of Keras that compute what the script wrote
SCRIPT_KINDS = {"Lambda", "TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer", "ClassMethod", "InstanceMethod"}
WHOLE_KINDS = RECURRENT_KINDS | COMPOSITE_KINDS | {"TimeDistributed"}  # layers that compute what their parts do not
CELL_KINDS = {"LSTMCell", "GRUCell", "SimpleRNNCell", "ConvLSTMCell", "StackedRNNCells"}
# Layers that other scripts compute in steps
STEPWISE_KINDS = RECURRENT_KINDS | COMPOSITE_KINDS | CELL_KINDS | {"Attention", "AdditiveAttention"}
# Operations that return what they receive; the handle of a variable stands for its value
IDENTITIES = {"ReadVariableOp", "Identity", "IdentityN", "EnsureShape", "CheckNumerics", "Snapshot", "_EagerConst"}
# Operations on shapes and on the states of random generators
SKIPPED = {"Shape", "ShapeN", "Size", "Rank", "StatelessRandomGetKeyCounter", "StatelessRandomGetAlg", "Const"}
# Inputs that are small constants, with their names as arguments
ARGUMENTS = {
    "reduction_indices": "axis", "dim": "axis", "dimension": "axis", "split_dim": "axis", "axis": "axis",
    "perm": "perm", "shape": "shape", "dims": "shape", "begin": "begin", "end": "end", "strides": "strides",
    "size": "size", "multiples": "multiples", "paddings": "paddings", "k": "k", "depth": "depth", "shift": "shift",
    "size_splits": "size_splits", "start": "start", "limit": "limit", "delta": "delta", "num_segments": "num_segments",
}  # fmt: skip
MAX_ARGUMENT_SIZE = 16
# Attributes of a strided slice: each has a bit for each item of its index
MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask", "begin_mask", "end_mask")
SEEDS = {"key", "counter", "alg", "seed"}
INTERNAL_ATTRIBUTES = {"grad_a", "grad_b", "use_cudnn_on_gpu", "validate_indices", "bad_indices_policy", "Truncate"}
INTERNAL_SETTINGS = {"name", "trainable", "dtype", "build_config", "seed"}
INTERNAL_SUFFIXES = ("_initializer", "_regularizer", "_constraint")


def measure(tensor: Any) -> TensorStatistics:  # noqa: ANN401  a tensor of any kind
    """Return the statistics of a tensor."""
    statistics: TensorStatistics = {
        "shape": [int(size) for size in tensor.shape],
        "dtype": tensor.dtype.name,
        "sum": None,
        "norm": None,
        "minimum": None,
        "maximum": None,
    }
    dtype = tensor.dtype
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
    if not is_number or not 0 < int(np.prod(statistics["shape"])) <= MAX_SIZE:
        return statistics
    array = np.ascontiguousarray(tensor)
    if dtype.is_complex:
        array = array.view(array.real.dtype)
    elif not (dtype.is_floating and array.dtype.kind == "f"):  # NumPy does not know bfloat16
        array = array.astype(np.float32 if dtype.is_floating else np.float64)
    total, squares = add_elements(array)
    if np.isfinite(total):
        statistics["sum"], statistics["norm"] = total, float(np.sqrt(squares))
        statistics["minimum"], statistics["maximum"] = float(array.min()), float(array.max())
        if array.size <= MOST_ORDERED and list(array.shape) == statistics["shape"]:
            statistics["centers"] = [
                float(np.moveaxis(array, axis, -1).reshape(-1, size).sum(0, np.float64) @ np.linspace(0, 1, size))
                for axis, size in enumerate(array.shape)
            ]
    return statistics


def describe_operation(
    name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> Optional[tuple[dict[str, object], list[Any]]]:  # noqa: UP045  Python 3.9 has no other notation at run time
    """Return the arguments of an operation and the tensors that it receives; None if the trace leaves it out.

    Args:
        name: The type of the operation.
        inputs: All of its inputs.
        attributes: Its attributes.
    """
    if name in SKIPPED:
        return None
    arguments, received = _list_attributes(name, attributes), []
    for key, tensor in zip(_name_inputs(name, attributes, len(inputs)), inputs):  # noqa: B905
        if key in ARGUMENTS and tensor.dtype.is_integer and tensor.shape.num_elements() <= MAX_ARGUMENT_SIZE:
            arguments[ARGUMENTS[key]] = tensor.numpy().tolist()
        elif key not in SEEDS:
            received.append(tensor)
    index = _write_index(name, arguments, received)
    return ({"index": index}, received[:1]) if index else (arguments, received)


def _write_index(name: str, arguments: Mapping[str, Any], received: Sequence[Any]) -> str:
    """Return the index by which an operation selects elements, as Python writes it; empty if there is none."""
    if name == "StridedSlice" and {"begin", "end", "strides"} <= arguments.keys():
        return write_index(tuple(_list_items(arguments)))
    if name == "Slice" and {"begin", "size"} <= arguments.keys():
        bounds = zip(arguments["begin"], arguments["size"], received[0].shape)  # noqa: B905
        return write_index(tuple(write_length(x, n - x if count < 0 else count, n) for x, count, n in bounds))
    if name == "ReverseV2" and "axis" in arguments:
        return write_flip(arguments["axis"], received[0].shape.rank)
    if name == "GatherV2" and "axis" in arguments and received[1].shape.rank == 0 and not arguments.get("batch_dims"):
        return write_axis_index(int(received[1]), arguments["axis"], received[0].shape.rank)
    return ""


def _list_items(arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the items of the index of a strided slice."""
    masks = [int(arguments.get(mask, 0)) for mask in MASKS]
    bounds = zip(arguments["begin"], arguments["end"], arguments["strides"])  # noqa: B905
    for position, (begin, end, stride) in enumerate(bounds):
        is_ellipsis, is_new, is_number, has_no_begin, has_no_end = (mask >> position & 1 for mask in masks)
        if is_ellipsis or is_new:
            yield Ellipsis if is_ellipsis else None
        elif is_number:
            yield begin
        else:
            yield slice(None if has_no_begin else begin, None if has_no_end else end, None if stride == 1 else stride)


def _list_attributes(name: str, attributes: Mapping[str, Any]) -> dict[str, object]:
    definition = op_def_registry.get(name)
    if definition is None:
        return {}  # a function that was traced
    counts = {argument.number_attr for argument in definition.input_arg}
    names = [x.name for x in definition.attr if "type" not in x.type and x.name not in counts | INTERNAL_ATTRIBUTES]
    listed: dict[str, object] = {}
    for key in names:
        value = attributes.get(key)
        value = value.decode() if isinstance(value, bytes) else value
        if not (value is None or (isinstance(value, (list, str)) and not value)):
            listed[key] = value
    if name == "Cast":
        listed["dtype"] = tf.as_dtype(attributes["DstT"]).name
    return listed


def _name_inputs(name: str, attributes: Mapping[str, Any], count: int) -> list[str]:
    definition = op_def_registry.get(name)
    names: list[str] = []
    for argument in definition.input_arg if definition is not None else ():
        number = attributes.get(argument.number_attr, 1) if argument.number_attr else 1
        if argument.type_list_attr:
            number = len(attributes.get(argument.type_list_attr, [None]))
        names += [argument.name] * int(number)
    return names if len(names) == count else [""] * count


def is_whole(layer: Layer) -> bool:
    """Check whether a layer is one operation: it is Keras's own, and contains no layers that are operations."""
    kind = get_kind(layer)
    if not is_of_keras(type(layer)) or kind in SCRIPT_KINDS:
        return False
    return kind in WHOLE_KINDS or not list_parts(layer)


def has_parts(layer: Layer) -> bool:
    """Check whether a layer that is one operation lists those that it consists of."""
    return get_kind(layer) in STEPWISE_KINDS


def is_of_keras(function: object) -> bool:
    """Check whether a function or a class comes from Keras or TensorFlow, and not from the script."""
    module = getattr(function, "__module__", None) or ""
    return str(module).partition(".")[0] in (*KERAS_PACKAGES, "tensorflow")


def list_settings(layer: Layer, has_activation: bool) -> dict[str, object]:
    """Return the plain arguments of a layer of Keras. has_activation: whether its activation is part of it."""
    settings: dict[str, object] = {}
    with contextlib.suppress(Exception):  # a layer without a config
        settings.update(layer.get_config())
    if not has_activation:
        settings.pop("activation", None)
    return {
        name: value
        for name, value in settings.items()
        if name not in INTERNAL_SETTINGS and not name.endswith(INTERNAL_SUFFIXES) and value is not None
    }


def select_names(names: Mapping[str, int], calls: Sequence[int], losses: Sequence[int]) -> dict[str, int]:
    """Return the names of tensors as in a record.

    Args:
        names: Numbers of tensors by names that begin with the number of a call of the model or of a loss.
        calls: The numbers of the calls of the model on which the loss depends. The record has the layers of the first.
        losses: The numbers of the calls of losses on which it depends.
    """
    prefixes = {"weight/": "weight/", **{f"{call}/layer/": "layer/" for call in calls[:1]}}
    for position, call in enumerate(calls):
        prefixes.update({f"{call}/{kind}/": f"{name_call(0, position)}/{kind}/" for kind in ("input", "output")})
    prefixes.update({f"{call}/label/": "batch/0/label/" for call in losses})
    suffixes = {f"{call}/label/": f".{position}" for position, call in enumerate(losses) if position}
    return {
        f"{new}{name[len(prefix) :]}{suffixes.get(prefix, '')}": number
        for prefix, new in prefixes.items()
        for name, number in names.items()
        if name.startswith(prefix)
    }
