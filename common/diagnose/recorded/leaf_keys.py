"""Assignment of recorded arrays to the arrays of a script's batch by their keys and by the structure of the batch.

A leaf is an array of the script's own batch, which may be nested; its name joins keys and positions, as in "0.labels".
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.followed_arrays import OTHER
from common.diagnose.recorded.matched_arrays import (
    are_whole,
    has_equal_shape,
    has_same_shape,
    have_other_ranges,
    match_in_order,
)
from common.diagnose.recorded.recorded_batches import CLASS_WEIGHTS, SAMPLE_WEIGHTS
from common.diagnose.recorded.recorded_side import RecordedSide

Arrays = Mapping[str, np.ndarray]
# Names of the same input in transformers and KerasHub
SAME_INPUTS = {"token_ids": "input_ids", "padding_mask": "attention_mask", "segment_ids": "token_type_ids"}
LABEL_NAMES = ("label", "labels", "target", "targets", "y", "y_true")  # in scripts, PyTorch and Keras


def read_keys(side: RecordedSide) -> dict[str, str]:
    """Return the names in the followed script's batch of what its model and its loss received, by recorded name."""
    facts = side.get_facts(side.record.steps[0])
    keys = {name.replace("/", " ", 1): key for name, key in facts.get("keys", {}).items()}
    if f"label {CLASS_WEIGHTS}" in keys:  # which may be the weights of the examples
        keys[f"label {SAMPLE_WEIGHTS}"] = keys[f"label {CLASS_WEIGHTS}"]
    return keys


def get_key(name: str) -> str:
    """Return the last key of the name of an array."""
    return name.rpartition(".")[2].rpartition(" ")[2]


def have_equal_keys(leaf: str, name: str) -> bool:
    """Check whether an array of the script's batch and a recorded one have the same last key, which is no position."""
    return get_key(leaf) == get_key(name) and not get_key(leaf).isdecimal()


def are_synonyms(leaf: str, name: str) -> bool:
    """Check whether the last keys of an array of the script's batch and of a recorded one are synonyms."""
    keys = get_key(leaf), get_key(name)
    if name.startswith("label "):
        return all(key in LABEL_NAMES for key in keys)
    return keys[0] in {*SAME_INPUTS, *SAME_INPUTS.values()} and len({SAME_INPUTS.get(key, key) for key in keys}) == 1


def name_places(arrays: Arrays, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the names of recorded arrays by their names in the followed script's batch."""
    places = {key: name for name, key in keys.items() if name in arrays}
    return places | {name.removeprefix(OTHER): name for name in arrays if name.startswith(OTHER)}


def match_structure(leaves: Arrays, arrays: Arrays, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded array in the place of each leaf, if both scripts' batches have the same structure.

    Args:
        leaves: The arrays of the script's batch.
        arrays: The recorded arrays.
        keys: As `read_keys` returns them.
    """
    places = name_places(arrays, keys)
    fit = places.keys() == leaves.keys() and all(
        _may_be_same(arrays[places[leaf]], array) for leaf, array in leaves.items()
    )
    return {leaf: places[leaf] for leaf in leaves} if fit else {}


def _may_be_same(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether a recorded array may be in the place of the script's array. Whole numbers may have any type."""
    if are_whole(array) and are_whole(template):
        array, template = array.astype(np.int64), template.astype(np.int64)
    return has_equal_shape(array, template) and not have_other_ranges(template, array)


def match_micro_batch(leaves: Arrays, arrays: Arrays, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded array for each leaf if both batches have as many arrays: in its place, or in their order.

    Arrays may differ in the length of one axis.

    Args:
        leaves: The arrays of the script's batch.
        arrays: The arrays of a recorded micro-batch.
        keys: As `read_keys` returns them.
    """
    places = name_places(arrays, keys)
    if places.keys() == leaves.keys():
        fit = all(_is_like(arrays[places[leaf]], array) for leaf, array in leaves.items())
        return {leaf: places[leaf] for leaf in leaves} if fit else {}
    in_order = {places[key]: arrays[places[key]] for key in sorted(places, key=_split_name)}
    matches = match_in_order(leaves, in_order, _is_like)
    return matches if len(matches) == len(leaves) == len(places) else {}


def match_without_rows(leaves: Arrays, arrays: Arrays, keys: Mapping[str, str]) -> dict[str, str]:
    """Return recorded arrays without a row for each example for such leaves: by place, by key, or by shape.

    Args:
        leaves: The arrays of the script's batch.
        arrays: The recorded arrays.
        keys: As `read_keys` returns them.
    """
    matches: dict[str, str] = {}
    for are_same in (
        lambda leaf, name: leaf in (keys.get(name), name.removeprefix(OTHER)),
        lambda leaf, name: have_equal_keys(leaf, keys.get(name, name)),
        lambda leaf, name: has_same_shape(arrays[name], leaves[leaf]) and arrays[name].ndim == leaves[leaf].ndim,
    ):
        for leaf in leaves:
            same = [name for name in arrays if name not in matches.values() and are_same(leaf, name)]
            if leaf not in matches and same:
                matches[leaf] = same[0]
    return matches


def _split_name(name: str) -> list[tuple[int, str]]:
    """Return the keys and positions of a name, by which names are in the order of the batch."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _is_like(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether two arrays have one kind, and in one layout differ at most in the length of one axis."""
    array = convert_to_layout(array, template)
    if array.ndim != template.ndim or (array.dtype.kind == "f") != (template.dtype.kind == "f"):
        return False
    return sum(a != b for a, b in zip(array.shape, template.shape, strict=True)) < 2
