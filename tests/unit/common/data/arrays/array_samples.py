"""Named arrays, written in every format."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

Values = Mapping[str, np.ndarray | list]  # a ragged array is a list of arrays
FORMATS = (".npz", "", ".safetensors", ".parquet")  # "": a directory of .npy files


def flat(arrays: Values) -> dict[str, np.ndarray]:
    """Return ragged arrays as their values and offsets."""
    flat_arrays = {}
    for name, array in arrays.items():
        if isinstance(array, list):
            flat_arrays[f"{name}.offsets"] = np.cumsum([0, *map(len, array)])
            array = np.concatenate(array)
        flat_arrays[name] = array
    return flat_arrays


def write(directory: Path, name: str, suffix: str, arrays: Values) -> str:
    """Write a split and return its path."""
    path = directory / f"{name}{suffix}"
    if suffix == ".npz":
        np.savez(path, **flat(arrays))  # type: ignore[arg-type]
    elif suffix == ".safetensors":
        save_file(flat(arrays), path)
    elif suffix == ".parquet":
        pq.write_table(pa.table({name: column(array) for name, array in arrays.items()}), path, row_group_size=7)
    else:
        path.mkdir(exist_ok=True)
        for array_name, array in flat(arrays).items():
            np.save(path / f"{array_name}.npy", array)
    return str(path)


def column(array: np.ndarray | list) -> pa.Array:
    """Return an array of one axis, or of lists."""
    if isinstance(array, list):
        return pa.array(
            [example.tolist() for example in array], pa.list_(column(np.concatenate(array)).type), from_pandas=False
        )
    if array.ndim == 1:
        return pa.array(array)
    return pa.array(array.tolist(), pa.list_(column(array.reshape(-1, *array.shape[2:])).type))
