"""Examples that a function of the user yields, read once into the array cache.

The function runs in a process of its own, so that the framework that it may import is not loaded into the process that
trains.
"""

import atexit
import inspect
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from common.config.data import CustomDataSettings
from common.config.import_object import import_function
from common.data.arrays.array_files import NamedArrays, to_named_arrays
from common.data.arrays.array_readers import LoadedArrays
from common.data.arrays.example_files import open_examples, write_examples
from common.data.build_progress import show_progress
from common.data.identity import Identity, collect_source_keys, identify_file
from common.errors import UserError, describe_error

SPLITS = ("train", "validation")
KEY = "data.read"

# For each split, the range of examples to read: the first one and the end; None to read all.
Ranges = Mapping[str, tuple[int, int] | None]
ALL: Ranges = dict.fromkeys(SPLITS)
START = "start"  # the argument of the function with the index of the first training example of a stream
REPEATED_EXAMPLES = 4  # the last examples of a stream's first block, which are read once more to check the function

log = logging.getLogger("lockstep")


def read(data: CustomDataSettings, scratch: Path) -> tuple[NamedArrays, NamedArrays]:
    """Return both splits, memory-mapped.

    Args:
        data: Settings of the data.
        scratch: Empty directory for the arrays, which must exist as long as the arrays are used.

    Raises:
        UserError: The function does not exist or raises an error, or its examples are not arrays of numbers.
    """
    log.info("reading the examples of %s=%s", KEY, data.read)
    limit = None if data.stream is None else (0, data.stream)
    _run(data, scratch, {"train": limit, "validation": None})
    splits = [(_get_location(data, split), open_examples(scratch / split)) for split in SPLITS]
    train, validation = to_named_arrays(*splits)
    if data.stream is not None:
        _check_start(data, scratch, train, data.stream)
    return train, validation


def _check_start(data: CustomDataSettings, scratch: Path, block: NamedArrays, end: int) -> None:
    """Raise UserError unless the function yields the last examples of the first block if it starts there."""
    first = end - REPEATED_EXAMPLES
    repeated = scratch / "repeated"
    repeated.mkdir()
    arrays = (block.location, read_stream(data, repeated, first, end))
    again, _ = to_named_arrays(arrays, arrays)
    for name, column in block.columns.items():
        copy = again.columns.get(name)
        is_ragged = column.offsets is not None  # an error in a stream, which `check_streamed_arrays` raises later
        if not is_ragged and not (copy and np.array_equal(column.values[first:], copy.values, equal_nan=True)):
            raise UserError(
                f"{block.location}: with start={first} it yields other examples than number {first} and those after it "
                f"({name} differs); skip the first `start` examples, and yield the same examples every time"
            )


def read_stream(data: CustomDataSettings, scratch: Path, first: int, end: int) -> LoadedArrays:
    """Return the training examples from `first` to `end` - 1 of a stream, memory-mapped. Raise UserError as `read`."""
    _run(data, scratch, {"train": (first, end)})
    return open_examples(scratch / "train")


def _run(data: CustomDataSettings, scratch: Path, ranges: Ranges) -> None:
    """Write the examples of splits in a child process, which ends with this process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_write_and_send, args=(data, scratch, sender, ranges))
    process.start()
    sender.close()
    atexit.register(process.terminate)  # before the interpreter waits for it, such as if a thread has called this
    try:
        problem = receiver.recv()
    except EOFError:
        problem = f"{KEY}={data.read}: the process that reads the examples crashed"
    except BaseException:  # such as a signal, after which the process would continue to read
        process.terminate()
        raise
    finally:
        process.join()
        atexit.unregister(process.terminate)
    if problem is not None:
        raise UserError(problem)


def identify(data: CustomDataSettings) -> Identity:
    """Return the config keys, and the identity of the file that has the function. Raise UserError."""
    module, _, name = data.read.partition(":")
    try:
        spec = find_spec(module) if module and name else None
    except Exception as error:
        raise UserError(f"{KEY}={data.read}: importing it raised {describe_error(error)}") from error
    if not (module and name):
        raise UserError(f"{KEY}={data.read}: must be module:function, such as my_data:read")
    if spec is None or spec.origin is None:
        raise UserError(f"{KEY}={data.read}: no module {module} in the working directory or on the Python path")
    stream = {} if data.stream is None else {"stream": data.stream}
    return {**collect_source_keys(data), **stream, "file": identify_file(Path(spec.origin))}


def _get_location(data: CustomDataSettings, split: str) -> str:
    """Return the name of a split for errors."""
    return f"{KEY}={data.read}, {split}"


def _write_and_send(
    data: CustomDataSettings, scratch: Path, sender: "Connection[str | None, str | None]", ranges: Ranges
) -> None:
    """Write splits, and send the problem, or None, to the process that waits. End as soon as that process ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    problem = write_splits(data, scratch, ranges)
    with suppress(BrokenPipeError):  # the process that waits has ended
        sender.send(problem)


def write_splits(data: CustomDataSettings, scratch: Path, ranges: Ranges = ALL) -> str | None:
    """Write the examples of splits. Return the message of an error, since not every error can be pickled."""
    try:
        function = import_function(KEY, data.read)
        for split, limits in ranges.items():
            location = _get_location(data, split)
            (scratch / split).mkdir()
            if data.stream is not None:
                _check_signature(function)
            first = 0 if limits is None else limits[0]
            try:
                start = {} if limits is None else {START: first}
                dataset = function(split=split, **start, **data.arguments)
            except Exception as error:
                return f"{location}: raised {describe_error(error)}"
            examples = _iterate_examples(location, dataset, data.names, first)
            if limits is not None:
                examples = _take(examples, location, *limits)
            write_examples(examples, location, scratch / split, first)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{scratch}: the examples of {KEY}={data.read} cannot be written ({error.strerror}); free some space"
    return None


def _check_signature(function: Callable[..., Any]) -> None:
    """Raise UserError if the function of a stream has no argument `start`. A function of C may not name its own."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return  # the call shows whether it has the argument
    if not any(parameter.name == START or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise UserError(
            f"{KEY}: data.stream needs a function with the argument {START}=0, the first training example to yield"
        )


def _take(
    examples: Iterator[dict[str, np.ndarray]], location: str, first: int, end: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield as many examples as there are from `first` to `end` - 1. Raise UserError if there are fewer."""
    position = first
    for example in islice(examples, end - first):
        yield example
        position += 1
    if position < end:
        raise UserError(f"{location}: ended after {position} examples; lower data.stream_examples to {position}")


def _iterate_examples(
    location: str,
    dataset: Any,  # noqa: ANN401  a dataset of any library
    names: Sequence[str] | None,
    first: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays of each example by name.

    Args:
        location: The name of the split, for errors.
        dataset: A tf.data.Dataset, a torch.utils.data.Dataset, a Hugging Face Dataset, or any iterable.
        names: Names of the elements of examples that are tuples.
        first: The number of the first example, for errors.
    """
    number = first - 1
    try:
        for number, example in enumerate(show_progress(_iterate(location, dataset), "reading examples"), first):
            yield _name_arrays(f"{location}[{number}]", example, names)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{location}[{number + 1}]: raised {describe_error(error)}") from error


def _iterate(location: str, dataset: Any) -> Iterable[object]:  # noqa: ANN401  a dataset of any library
    if hasattr(dataset, "as_numpy_iterator"):  # a tf.data.Dataset
        examples: Iterable[object] = dataset.as_numpy_iterator()
        return examples
    if isinstance(dataset, Iterable) and not isinstance(dataset, str | bytes | Mapping):
        return dataset
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, Mapping):
        return (dataset[index] for index in range(len(dataset)))  # a map-style Dataset of PyTorch may have no end
    raise UserError(f"{location}: is {type(dataset).__name__}; return an iterable of examples or a dataset")


def _name_arrays(location: str, example: object, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return the arrays of one example by name."""
    if isinstance(example, tuple | list):
        if names is None:
            raise UserError(f"{location}: is a {type(example).__name__}; name its elements by data.names=[...]")
        if len(names) != len(example):
            raise UserError(f"{location}: has {len(example)} elements, but data.names has {len(names)} names")
        example = dict(zip(names, example, strict=True))
    if not isinstance(example, Mapping):
        raise UserError(f"{location}: is {type(example).__name__}; yield dicts of arrays, or tuples with data.names")
    try:
        arrays = {str(name): np.asarray(value) for name, value in example.items()}
    except Exception as error:
        raise UserError(f"{location}: is not a dict of arrays: {describe_error(error)}") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise UserError(f"{location}: {name} is an array of {array.dtype}, not of numbers; convert or remove it")
    return arrays
