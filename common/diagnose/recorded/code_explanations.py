"""Explanations of the code between layers, by its numbers, by the operations, and by the tokens that are padding.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection
from common.diagnose.findings import Explanation
from common.diagnose.recorded.masked_tokens import add_padded_examples, explain_mask_zero
from common.diagnose.recorded.operations.explanation import add_lines, explain_operations
from common.diagnose.recorded.operations.initial_states import explain_passed_states
from common.diagnose.recorded.operations.weight_uses import describe_shared_weights
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.rounding import is_close


def explain_recorded_code(
    pair: RecordPair,
    section: CodeSection,
    names: tuple[str, str],
    tokens: Sequence[np.ndarray],
    are_close: Callable[[np.ndarray, np.ndarray], bool],
) -> list[Explanation]:
    """Return explanations of what the code computes differently. The list is empty if an earlier difference does.

    Args:
        pair: The records.
        section: The code, with the arrays that differ.
        names: The names of the array in both records.
        tokens: Arrays [n, tokens] of integers that the model receives.
        are_close: Checks whether two arrays are equal up to rounding.
    """
    arrays = section.a, section.b
    first = explain_mask_zero(pair, section.place, arrays, tokens, are_close) or explain_passed_states(pair)
    if first is not None:
        return [first]
    explanations, may_be_reordered = [], is_close(np.sort(section.a, None), np.sort(section.b, None))
    for of_numbers in explain_code(section):
        if of_numbers.confirmed:
            explanations.append(add_lines(of_numbers, pair, *names))
            continue
        explanation = explain_operations(pair, section.place, *names, may_be_reordered=may_be_reordered) or of_numbers
        if not explanation.confirmed:
            shared = [words for side in "ba" if (words := describe_shared_weights(pair, side, lacks_uses=True))]
            if shared:
                explanation = replace(explanation, sentence=f"{explanation.sentence}; {shared[0]}")
            explanation = add_padded_examples(explanation, section.place, arrays, tokens, are_close)
        explanations.append(explanation)
    return explanations
