"""Messages between processes whose packages may have other versions."""

import pickle
import pickletools
from decimal import Decimal
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from common.map.description import RecordedCall
from common.map.side_messages import decode_message, encode_message, receive_message, send_parts

ARRAYS = [
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.arange(6.0).reshape(2, 3).T,  # in the order of Fortran
    np.array(1.5),
    np.zeros((0, 4), np.float32),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.array(["a", "bcd"]),
    np.array([True, False]),
    np.broadcast_to(np.float32(2), (2, 3)),  # read-only
]


def send_and_receive(value: object) -> Any:
    here, there = Pipe()
    with here, there:
        send_parts(here, encode_message(value))
        return receive_message(there)


def test_values_come_back_as_they_were() -> None:
    values = {"arrays": ARRAYS, "path": Path("/a b"), "scalar": np.float32(0.1), "dtype": np.dtype("int8"), "n": {1, 2}}
    decoded = send_and_receive(values)
    assert {name: decoded[name] for name in ("path", "scalar", "dtype", "n")} == {
        name: values[name] for name in ("path", "scalar", "dtype", "n")
    }
    for array, original in zip(decoded["arrays"], ARRAYS, strict=True):
        assert array.dtype == original.dtype and array.shape == original.shape and array.flags.writeable
        np.testing.assert_array_equal(array, original)


def test_a_message_names_no_class_of_a_library() -> None:
    call = RecordedCall(np.ones(3), None)
    message = encode_message((call, Path("a"), np.float64(1), *ARRAYS))
    assert isinstance(decode_message(message)[0], RecordedCall)
    names = [argument for _, argument, _ in pickletools.genops(bytes(message[0])) if isinstance(argument, str)]
    assert "common.map.side_messages" in names
    assert not [name for name in names if name.startswith(("numpy", "pathlib", "ml_dtypes"))]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("common.map.side", "subprocess.Popen"),  # what a module has imported
        ("common.map.side", "Pipe"),
        ("common.interpreter", "check_interpreter"),  # a function
    ],
)
def test_a_message_gets_no_function(module: str, name: str) -> None:
    names = [pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode() for text in (module, name)]
    call = pickle.PROTO + b"\x04" + b"".join(names) + pickle.STACK_GLOBAL + pickle.STOP
    with pytest.raises(pickle.UnpicklingError, match="has no objects of this class"):
        decode_message([memoryview(call)])


@pytest.mark.parametrize("value", [Decimal(1), np.array([object()]), np.zeros(1, [("a", int)]), print])
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(pickle.PickleError):
        decode_message(encode_message(value))
