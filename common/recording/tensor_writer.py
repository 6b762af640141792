"""Writer of safetensors files that needs no memory: the library's own holds a second copy of all tensors.

Records and checkpoints are written with it. A record is written in the environment of the script that is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

TYPES = {  # names of types in safetensors, by their names in NumPy
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "complex64": "C64",
}
ALIGNMENT = 8  # the header's size is a multiple of this, so that tensors begin at addresses that suit their types


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file.

    Args:
        path: The file.
        arrays: The tensors by name.
        metadata: Texts by name, which the file also has.

    Raises:
        OSError: The disk is full, for example.
        TypeError: The format has no such type.
    """
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    # Wide types stay aligned. Tensors of one width stay in the order in which the script has them
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, array in ordered:
        if array.dtype.name not in TYPES:
            raise TypeError(f"{name}: safetensors cannot hold the type {array.dtype.name}")
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, array in ordered:
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            file.write(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
