"""Lists in a batch with an array for each example, such as the boxes of each image, whose numbers of rows differ.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

EXAMPLE = "*"  # the place of the example in the name of a list: "2.*.boxes" for "2.0.boxes", "2.1.boxes", ...


def find_lists(arrays: Mapping[str, np.ndarray], counts: Collection[int] = ()) -> dict[str, list[str]]:
    """Return the names of the arrays of each list of examples, by the name of the list, such as "2.*.boxes".

    The arrays of a list may differ in the length of their first axis only. There are as many as another array of the
    batch has rows, and one of them has another number of rows: the arrays themselves have no axis of examples. The
    batch itself is no such list, but may consist of the batches of several loaders.

    Args:
        arrays: The arrays of a batch by name. A name joins keys and positions, as in "2.0.boxes".
        counts: Numbers of examples that arrays elsewhere show.
    """
    lists: dict[str, dict[int, str]] = {}
    for name in arrays:
        parts = name.split(".")
        for place, part in enumerate(parts):
            if place and part.isdecimal():
                title = ".".join([*parts[:place], EXAMPLE, *parts[place + 1 :]])
                lists.setdefault(title, {})[int(part)] = name
    return {
        title: [items[index] for index in range(len(items))]
        for title, items in lists.items()
        if len(items) > 1
        and set(items) == set(range(len(items)))
        and _are_examples(arrays, set(items.values()), counts)
    }


def _are_examples(arrays: Mapping[str, np.ndarray], names: Collection[str], counts: Collection[int]) -> bool:
    items = [arrays[name] for name in names]
    have_one_kind = len({(item.ndim, item.shape[1:], item.dtype) for item in items}) == 1
    if not have_one_kind or not items[0].ndim or all(len(item) == len(items) for item in items):
        return False
    rows = {len(array) for name, array in arrays.items() if array.ndim and name not in names}
    return len(items) in {*counts, *rows}
