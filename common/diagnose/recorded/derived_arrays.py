"""Arrays of a script's batch that follow from its other arrays, such as the weights of labels and numbers of tokens.

The followed script may lack them. They are then computed from the recorded arrays.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.recorded.losses.class_weights import ClassWeights, find_class_weights
from common.diagnose.recorded.recorded_batches import SAMPLE_WEIGHTS
from common.diagnose.recorded.token_lengths import TokenLengths, find_token_lengths

Rule = ClassWeights | TokenLengths


def find_derived(
    examples: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], class_weights: Mapping[float, float]
) -> tuple[dict[str, Rule], dict[str, np.ndarray]]:
    """Return the rules of the script's arrays that the record lacks, and the recorded arrays that are no such ones.

    Args:
        examples: The script's arrays with a row for each example.
        arrays: The recorded arrays.
        class_weights: The weights that the script declares, by class.
    """
    lengths = find_token_lengths(examples)
    recorded = [name for name in find_token_lengths(arrays) if not name.startswith("label ") and not lengths]
    further = {name: array for name, array in arrays.items() if name not in recorded}
    if _count_single(examples) <= _count_single(further):  # labels that are integers would get the recorded lengths
        arrays = further
    # Otherwise the record has an array for each of the script's, and labels may follow from an input as weights do
    has_further = len(examples) > len({*arrays} - {f"label {SAMPLE_WEIGHTS}"})
    return {**find_class_weights(examples, class_weights), **lengths} if has_further else {}, dict(arrays)


def _count_single(arrays: Mapping[str, np.ndarray]) -> int:
    """Return how many arrays have a single number for each example."""
    return sum(array.size == len(array) for array in arrays.values())
