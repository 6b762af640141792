"""Lists with an array for each example, such as the boxes of each image, as padded arrays with an example in each row.

One script may have such lists, and the other script arrays [n, longest, ...] that it pads itself. Several arrays may
describe the same objects, such as their boxes and their classes: they are padded in the same rows.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from common.recording.example_lists import EXAMPLE, find_lists

Arrays = dict[str, np.ndarray]
Lengths = dict[str, np.ndarray]


def join_lists(arrays: Mapping[str, np.ndarray], counts: Collection[int] = ()) -> tuple[Arrays, Lengths]:
    """Join lists of examples to arrays [n, longest, ...], padded with zeros.

    Args:
        arrays: The arrays of a batch by name.
        counts: Numbers of examples that arrays elsewhere show.

    Returns:
        The arrays by name, with "2.*.boxes" for a list of "2.0.boxes", "2.1.boxes" and so on, and the number of rows of
        each example [n] by the name of the list.
    """
    lists = find_lists(arrays, counts)
    items = {name for names in lists.values() for name in names}
    joined = {name: array for name, array in arrays.items() if name not in items}
    lengths: Lengths = {}
    for title, names in lists.items():
        lengths[title] = np.array([len(arrays[name]) for name in names])
        first = arrays[names[0]]
        joined[title] = np.zeros((len(names), max(lengths[title]), *first.shape[1:]), first.dtype)
        for row, name in zip(joined[title], names, strict=True):
            row[: len(arrays[name])] = arrays[name]
    return joined, lengths


def cut_lists(names: Mapping[str, str], rows: Arrays, lengths: Lengths, steps: Sequence[Arrays]) -> Arrays:
    """Return recorded rows as lists of examples.

    Args:
        names: The name of the recorded array by the name of the list in the script's batch.
        rows: The recorded rows [n, longest, ...] by the name of the list in the script's batch.
        lengths: The number of rows of each example of the recorded arrays that are lists, by recorded name.
        steps: The arrays of all recorded steps, by recorded name. They show how the followed script pads.
    """
    cut: Arrays = {}
    for leaf, name in names.items():
        of_list = [x for x in names if _get_list(x) == _get_list(leaf)]
        if name in lengths:
            counts = lengths[name]
        else:
            known = [_join_rows([step[names[x]] for x in of_list]) for step in steps]
            counts = _count_rows(_join_rows([rows[x] for x in of_list]), _find_padding(known))
        cut |= {leaf.replace(EXAMPLE, str(row)): rows[leaf][row, :count] for row, count in enumerate(counts)}
    return cut


def pad_lists(names: Mapping[str, str], rows: Arrays, lengths: Lengths, templates: Arrays) -> Arrays:
    """Return rows of recorded lists with the padding of a script's own arrays, and at least as many rows.

    Args:
        names: The name of the recorded list by the name of the array in the script's batch.
        rows: The recorded rows [n, longest, ...] by the name of the array in the script's batch.
        lengths: The number of rows of each example of the recorded lists, by recorded name.
        templates: The script's own arrays, with an example in each row.
    """
    padded: Arrays = {}
    for leaf, name in names.items():
        of_list = [x for x, other in names.items() if _get_list(other) == _get_list(name)]
        padding = _find_padding([_join_rows([templates[x] for x in of_list])])
        widths = [int(np.prod(templates[x].shape[2:])) for x in of_list]
        start = sum(widths[: of_list.index(leaf)])
        array, template = rows[leaf], templates[leaf]
        padded[leaf] = np.zeros((len(array), max(array.shape[1], template.shape[1]), *array.shape[2:]), template.dtype)
        if padding is not None:
            padded[leaf][:] = padding[start : start + widths[of_list.index(leaf)]].reshape(template.shape[2:])
        for row, known, length in zip(padded[leaf], array, lengths[name], strict=True):
            row[:length] = known[:length]
    return padded


def _get_list(name: str) -> str:
    return name.partition(EXAMPLE)[0]


def _count_rows(rows: np.ndarray, padding: np.ndarray | None) -> np.ndarray:
    """Return the number of rows of each example [n, longest, values] before its padding."""
    is_padding = np.zeros(rows.shape[:2], bool) if padding is None else (rows == padding).all(-1)
    return np.asarray(rows.shape[1] - np.cumprod(is_padding[:, ::-1], axis=1).sum(1))


def _find_padding(batches: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the row [values] with which a script pads the examples of batches [n, longest, values].

    It is the row that is most often one of the last two of an example. None if no row occurs there twice.
    """
    ends = np.concatenate([rows[:, -2:].reshape(-1, rows.shape[2]) for rows in batches])
    values, counts = np.unique(ends, axis=0, return_counts=True)
    return np.asarray(values[np.argmax(counts)]) if counts.max(initial=0) > 1 else None


def _join_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Join the numbers of equal rows of arrays [n, longest, ...] to [n, longest, values]."""
    return np.concatenate([array.reshape(*array.shape[:2], -1).astype(np.float64) for array in arrays], axis=2)
