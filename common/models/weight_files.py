"""The files with the weights of a checkpoint, which any program may have written."""

from collections.abc import Collection, Iterable
from pathlib import Path

import ml_dtypes  # noqa: F401  teaches NumPy the type bfloat16, which safetensors then reads
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from common.errors import UserError

FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
WEIGHTS_FILE, SHARDS = "model.safetensors", "model-*-of-*.safetensors"  # the names that transformers gives


def list_weight_files(directory: Path) -> list[Path]:
    """Return the files with the weights of a checkpoint in Hugging Face format: one file, its shards, or all others.

    Other safetensors files beside model.safetensors have other contents, such as an optimizer's slots.
    """
    if (directory / WEIGHTS_FILE).exists():
        return [directory / WEIGHTS_FILE]
    return sorted(directory.glob(SHARDS)) or sorted(directory.glob("*.safetensors"))


def read_weight_file(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file by name, bfloat16 and float16 as float32. Raise UserError."""
    return {
        name: array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array
        for name, array in read_safetensors(f"model.checkpoint: {path}", path).items()
    }


def read_safetensors(location: str, path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file by name, in their own types.

    Args:
        location: The beginning of errors, which names the file.
        path: The path of the file.

    Raises:
        UserError: The file is damaged, or has a type that NumPy lacks.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError, TypeError) as error:  # a type that NumPy does not know is a TypeError
        raise UserError(f"{location} cannot be read ({error}); fetch or save it again") from error


def read_weight_files(directory: Path) -> dict[str, np.ndarray]:
    """Return the tensors of all files with the weights of a checkpoint. Raise UserError."""
    tensors: dict[str, np.ndarray] = {}
    for path in list_weight_files(directory):
        for name, array in read_weight_file(path).items():
            if name in tensors:
                raise UserError(f"model.checkpoint: {directory} has {name} in two files; remove the other weights")
            tensors[name] = array
    return tensors


def check_weights(weights: Collection[str], names: Iterable[str]) -> None:
    """Raise UserError if the weights of a checkpoint lack one of the names that a model has."""
    missing = [name for name in names if name not in weights]
    if missing:
        raise UserError(
            f"the checkpoint has no {missing[0]} ({len(missing)} missing in all), which the model has; give a "
            "checkpoint of this model"
        )
