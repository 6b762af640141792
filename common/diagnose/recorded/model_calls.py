"""Several calls of a model in one micro-batch, such as those for the real and for the fake images of a GAN.

A script may call its model several times before it computes the gradients. The rows of all calls count as examples of
the micro-batch, in the order of the calls. A script that calls its model once, with the real and the fake images in one
array, then has the same examples.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from common.diagnose.recorded.example_rows import join_examples
from common.errors import UserError
from common.recording.tensor_file import TensorFile

Arrays = Mapping[str, np.ndarray]
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def count_calls(file: TensorFile, micro_batch: int) -> int:
    """Return the number of calls of a micro-batch whose arrays a record holds. Raise UserError if one is missing."""
    prefix = f"batch/{micro_batch}/call/"  # of all calls but the first, whose names have no call number
    numbers = {name.removeprefix(prefix).partition("/")[0] for name in file.names if name.startswith(prefix)}
    if numbers != {str(number) for number in range(1, len(numbers) + 1)}:
        raise UserError(f"{file.path}: the calls of micro-batch {micro_batch} have gaps; record the script again")
    return 1 + len(numbers)


def describe_call(call: int, count: int) -> str:
    """Describe one of several calls, such as "the second of 3 calls". call: its number, from 0."""
    ordinal = ORDINALS[call] if call < len(ORDINALS) else f"{call + 1}th"
    return f"the {ordinal} of {count} calls of the model"


def join_calls(calls: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Join the inputs, or the outputs, of a model in all calls of a micro-batch.

    An array is left out if a call lacks it, or has it with another number of axes.
    """
    if len(calls) == 1:
        return dict(calls[0])
    joined = {}
    for position, (name, array) in enumerate(calls[0].items()):
        parts = [_find_counterpart(call, name, position) for call in calls]
        arrays = [part for part in parts if part is not None and part.ndim == array.ndim > 0]
        if len(arrays) == len(calls):
            joined[name] = join_examples(arrays)
    return joined


def _find_counterpart(call: Arrays, name: str, position: int) -> np.ndarray | None:
    """Return the array of a call with this name; None if there is none.

    If the name is the position of an argument, the call may have passed the argument by keyword: the array at this
    position counts then.
    """
    values = [*call.values()]
    return call.get(name, values[position] if len(values) > position and name.isdecimal() else None)


def join_labels(labels: Arrays, counts: Sequence[int], excluded: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Join the labels of a micro-batch, so that they have a label for each row that `join_calls` returns.

    If the script calls its loss once for each call of the model, the labels of these losses are joined. If one loss
    takes the outputs of all calls, such as a loss of pairs of examples, its labels are repeated for each call.

    Args:
        labels: The labels by name. If a loss is called again, the names of its labels end in ".1", ".2" and so on.
        counts: The number of rows of each call.
        excluded: Names of arrays that do not belong to examples.
    """
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in labels.items():
        groups.setdefault(re.sub(r"\.\d+$", "", name), {})[name] = array
    joined: dict[str, np.ndarray] = {}
    for base, group in groups.items():
        arrays = [*group.values()]
        sizes = [len(array) if array.ndim else 0 for array in arrays]
        if base in excluded:
            joined |= group
        elif sizes == [*counts] and len({array.ndim for array in arrays}) == 1:
            joined[base] = join_examples(arrays)
        elif len({*sizes, *counts}) == 1:
            joined |= {name: np.concatenate([array] * len(counts)) for name, array in group.items()}
        else:
            joined |= group
    return joined


def find_call_rows(counts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Return the indices of the rows of each call among all examples of a step.

    Return an empty list if the micro-batches have different numbers of calls.

    Args:
        counts: The number of rows of each call of each micro-batch.
    """
    numbers = {len(sizes) for sizes in counts}
    if len(numbers) != 1:
        return []
    starts = np.cumsum([0, *(size for sizes in counts for size in sizes)])
    calls = numbers.pop()
    return [
        np.concatenate([np.arange(starts[index], starts[index + 1]) for index in range(call, len(starts) - 1, calls)])
        for call in range(calls)
    ]
