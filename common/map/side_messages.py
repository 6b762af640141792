"""Messages between a command and the process of a side, whose environment may have other versions of all packages.

A message is a pickle of Python's own types and Lockstep's classes, followed by the elements of its arrays. Arrays and
paths are pickled as their plain parts, because the pickles of NumPy and pathlib name modules that another version
lacks. Other classes are refused.
"""

import io
import json
import os
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path, PurePath
from typing import Any

import ml_dtypes
import numpy as np
from typing_extensions import override

PROTOCOL = 5  # version of the pickle protocol that every Python which Lockstep supports can read
OWN_PACKAGES = ("common.", "torch_impl.", "tf_impl.")
PLAIN_CLASSES = {f"builtins.{name}" for name in ("bytearray", "complex", "frozenset", "range", "set", "slice")}
PLAIN_KINDS = "biufcSUmM"  # kinds of NumPy's types that their text describes


def send_parts(connection: Connection, parts: Sequence[memoryview]) -> None:
    """Send the parts of a message."""
    connection.send_bytes(json.dumps([len(part) for part in parts]).encode())
    for part in parts:
        while part:
            part = part[os.write(connection.fileno(), part) :]


def receive_message(connection: Connection) -> Any:  # noqa: ANN401  any value
    """Receive a value.

    Raises:
        EOFError: The other end is closed.
        pickle.UnpicklingError: The value holds an object of a library.
    """
    # Memory of bytearray would be filled with zeros first, and recv_bytes_into would make copies
    parts = [np.empty(size, np.uint8).data for size in json.loads(connection.recv_bytes())]
    for part in parts:
        while part:
            count = os.readv(connection.fileno(), [part])
            if not count:
                raise EOFError
            part = part[count:]
    return decode_message(parts)


def encode_message(value: object) -> list[memoryview]:
    """Return the parts of a message: the pickle, then the elements of each array, which are not copied.

    Raise PicklingError if an array has elements that cannot be sent, such as objects.
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Encoder(file, PROTOCOL, buffer_callback=buffers.append).dump(value)
    return [file.getbuffer(), *(buffer.raw() for buffer in buffers)]


def decode_message(parts: Sequence[memoryview]) -> Any:  # noqa: ANN401  any value
    """Return the value of a message from its parts, which its arrays keep."""
    return _Decoder(io.BytesIO(parts[0]), buffers=parts[1:]).load()


class _Encoder(pickle.Pickler):
    """Pickler that takes arrays, their types and paths apart."""

    @override
    def reducer_override(self, value: object) -> Any:
        if isinstance(value, np.ndarray):
            dtype = _name_dtype(value.dtype)  # refuses an array of objects
            elements = np.require(value, requirements=("C", "W")).reshape(-1)  # a read-only one is copied
            return _restore_array, (dtype, value.shape, pickle.PickleBuffer(elements.view(np.uint8).data))
        if isinstance(value, np.generic):
            return _restore_scalar, (_name_dtype(value.dtype), value.tobytes())
        if isinstance(value, np.dtype):
            return _find_dtype, (_name_dtype(value),)
        return (_restore_path, (str(value),)) if isinstance(value, PurePath) else NotImplemented


class _Decoder(pickle.Unpickler):
    """Unpickler of plain types and Lockstep's own classes."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        is_own = module.startswith(OWN_PACKAGES) and "." not in name
        if is_own or f"{module}.{name}" in PLAIN_CLASSES:
            member = super().find_class(module, name)
            # A class that the module has only imported from another module is refused, too
            if (module, name) in RESTORERS or (isinstance(member, type) and member.__module__ == module):
                return member
        raise pickle.UnpicklingError(f"{module}.{name}: a message has no objects of this class")


def _name_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.kind in PLAIN_KINDS:
        return dtype.str
    if hasattr(ml_dtypes, dtype.name):  # such as bfloat16
        return dtype.name
    raise pickle.PicklingError(f"an array of type {dtype} cannot be sent to another process")


def _find_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _restore_array(dtype: str, shape: tuple[int, ...], elements: memoryview) -> np.ndarray:
    return np.frombuffer(elements, _find_dtype(dtype)).reshape(shape)


def _restore_scalar(dtype: str, content: bytes) -> np.generic:
    scalar: np.generic = np.frombuffer(content, _find_dtype(dtype))[0]
    return scalar


def _restore_path(path: str) -> Path:
    return Path(path)


_FUNCTIONS = (_find_dtype, _restore_array, _restore_scalar, _restore_path)
RESTORERS = {(__name__, function.__name__) for function in _FUNCTIONS}
