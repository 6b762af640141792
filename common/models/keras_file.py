"""The arrays of Keras's files of weights: NAME.weights.h5, NAME.weights.json with its shards, and NAME.keras."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

from common.errors import UserError, one_line
from common.map.description import Arrays
from common.models.loaded_weights import check_names, check_shape
from common.models.weight_shards import read_index

ARCHIVED = "model.weights.h5"  # the weights in a file of .keras
OPTIMIZER = "optimizer/"  # beginning of the names of an optimizer's slots
OLD_GROUPS = ("model_weights", "_layer_checkpoint_dependencies")  # groups of HDF5 files that Keras 2 writes


def read_keras_file(location: str, path: Path, expected: Mapping[str, np.ndarray] | None = None) -> Arrays:
    """Return the arrays of a file by their names in it, such as layers/dense/vars/0, without the optimizer's slots.

    Args:
        location: The key and the file for errors, such as weights=model.pt.
        path: The path of the file.
        expected: The arrays that the model itself writes. Names and shapes are checked before an array is read. None
            for the file of the model itself.

    Raises:
        UserError: The file is damaged, of Keras 2, or does not belong to the model.
    """
    with _open_datasets(location, path) as datasets:
        if expected is not None:
            check_names(location, datasets, expected)
            for name, dataset in datasets.items():
                check_shape(location, name, dataset.shape, expected[name].shape)
        try:
            return {name: _read_dataset(dataset) for name, dataset in datasets.items()}
        except OSError as error:
            raise UserError(f"{location}: cannot be read ({one_line(error)}); fetch or save it again") from error


def has_optimizer(location: str, path: Path) -> bool:
    """Check whether a file has the slots of an optimizer, too. Raise UserError."""
    with _open_files(location, path) as files:
        return any(OPTIMIZER.rstrip("/") in file for file in files)


@contextmanager
def _open_datasets(location: str, path: Path) -> Iterator[dict[str, h5py.Dataset]]:
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, entry: object) -> None:
        if isinstance(entry, h5py.Dataset) and not name.startswith(OPTIMIZER):
            if entry.external or entry.is_virtual:
                raise UserError(f"{location}: {name} is in another file; save the weights with model.save_weights")
            datasets[name] = entry

    with _open_files(location, path) as files:
        for file in files:
            if "layer_names" in file.attrs or any(group in file for group in OLD_GROUPS):
                raise UserError(
                    f"{location}: is a file of Keras 2; load it there, and save the weights in Keras 3 with "
                    "model.save_weights"
                )
            file.visititems(visit)
        yield datasets


@contextmanager
def _open_files(location: str, path: Path) -> Iterator[list[h5py.File]]:
    """Open the HDF5 files of a file of weights."""
    with ExitStack() as stack:
        try:
            if path.suffix == ".json":
                shards = {shard for shards in read_index(location, path).values() for shard in shards}
                yield [stack.enter_context(h5py.File(shard)) for shard in sorted(shards)]
            elif path.suffix == ".keras":
                archived = stack.enter_context(stack.enter_context(zipfile.ZipFile(path)).open(ARCHIVED))
                yield [stack.enter_context(h5py.File(archived))]
            else:
                yield [stack.enter_context(h5py.File(path))]
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"{location}: cannot be read ({one_line(error)}); fetch or save it again") from error


def _read_dataset(dataset: h5py.Dataset) -> np.ndarray:
    array: np.ndarray = dataset[()]
    return array.view(ml_dtypes.bfloat16) if dataset.attrs.get("dtype") == "bfloat16" else np.asarray(array)
