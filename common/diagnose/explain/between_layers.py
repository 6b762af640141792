"""Reasons why the code between two layers computes different arrays in A and in B from the same outputs of layers.

A is the reference run of a diagnosis, and B the run that is compared with it. Layers hold parameters; the code between
them, such as an activation, pooling or attention, holds none.
"""

import numpy as np

from common.diagnose.explain.activation_difference import (
    LEAKY_RELU,
    LEAST_ELEMENTS,
    NO_ACTIVATION,
    find_activation,
    find_changed_activation,
    find_scaled_activation,
)
from common.diagnose.explain.array_order import explain_order
from common.diagnose.explain.code_section import CodeSection
from common.diagnose.explain.differing_terms import explain_terms
from common.diagnose.explain.factors import explain_factor, explain_lines
from common.diagnose.explain.gated_halves import explain_gated_halves
from common.diagnose.explain.gated_sums import explain_gated_sum
from common.diagnose.explain.inheritance import is_inherited
from common.diagnose.explain.layer import explain_numbers
from common.diagnose.explain.own_recurrence import explain_recurrence
from common.diagnose.explain.pooling import find_pooling
from common.diagnose.explain.projected_attention import explain_projected_attention
from common.diagnose.explain.reductions import list_reduced
from common.diagnose.explain.scored_sums import explain_scored_sum
from common.diagnose.explain.softmax_axis import explain_log_softmax, explain_softmax, explain_weighted_sum
from common.diagnose.explain.sums import compute_sum, describe_sum, find_sum
from common.diagnose.explain.time_axis import explain_time_axis
from common.diagnose.explain.vector_functions import AXES_OF_VECTORS, explain_vector_function, find_vector_function
from common.diagnose.explain.window_pooling import find_window_pooling
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close
from common.diagnose.unpadded_tokens import unpack_tokens


def explain_code(section: CodeSection) -> list[Explanation]:
    """Return explanations of what the code computes differently.

    The list is empty if an earlier difference, such as in the input of a residual block, explains the difference, or if
    both arrays equal the same variant of attention, within a larger tolerance than that of rounding.
    """
    if section.a.shape != section.b.shape:
        return [_explain_shapes(section)]
    if explanation := explain_numbers(section.tensor, section.a, section.b):
        return [explanation]
    for part in section.limit_examples().list_parts() if section.a.ndim else ():
        if (explanations := _explain_part(part)) is not None:
            return explanations
    sentence = f"{section.place}: the code computes another {section.tensor} from the same outputs of layers"
    return [Explanation("code_between_layers", sentence, confirmed=False)]


def _explain_part(section: CodeSection) -> list[Explanation] | None:
    """Return the explanations of `explain_code`, or None if nothing explains the difference."""
    if is_close(section.a, section.b):  # equal arrays fit every explanation; only attention is checked
        return [] if explain_projected_attention(section) == [] else None
    if is_inherited(section):
        return []
    if explanation := _explain_function(section):
        return [explanation]
    if section.a.size < LEAST_ELEMENTS or np.count_nonzero(section.a != section.b) < 2:  # any factor would fit so few
        explanation = _explain_changed_activation(section)
        return None if explanation is None else [explanation]
    if explanation := _explain_layer_order(section):
        return [explanation]
    for explain in (explain_projected_attention, _explain_sum):
        if (explanations := explain(section)) is not None:
            return explanations
    a, b, place, terms = section.a, section.b, section.place, section.shared_terms
    explanation = (
        explain_order(section.described_tensor, a, b, terms)
        or explain_gated_halves(section)
        or explain_log_softmax(place, a, b)
        or _explain_constant(section)
        or explain_factor(section.described_tensor, a, b, terms)
        or (explain_lines(section.described_tensor, a, b) if section.is_first else None)
        or _explain_changed_activation(section)
        or _explain_zeros(section)
        or explain_time_axis(section)
        or explain_recurrence(section)
        or explain_scored_sum(section)
        or explain_softmax(f"{place}: softmax", a, b)
        or explain_vector_function(place, a, b)
        or explain_gated_sum(place, a, b, terms)
        or explain_terms(place, a, b, terms, (section.list_differing_inputs("a"), section.list_differing_inputs("b")))
        or explain_weighted_sum(place, a, b, terms)
        or _explain_windows(section)
    )
    return None if explanation is None else [explanation]


def _explain_shapes(section: CodeSection) -> Explanation:
    """Explain why the arrays have different shapes: by poolings with different windows, or by an unknown reason."""
    if explanation := _explain_windows(section):
        return explanation
    shapes = f"{section.tensor} is {list(section.a.shape)} in A and {list(section.b.shape)} in B"
    return Explanation("shape", f"{section.place}: {shapes}")


def _explain_windows(section: CodeSection) -> Explanation | None:
    """Check whether A and B pool the windows of an earlier array in two ways."""
    for title, array in reversed(section.shared_terms):
        pooling_a = find_window_pooling(array, section.a)
        pooling_b = find_window_pooling(array, section.b) if pooling_a else None
        if pooling_a and pooling_b and pooling_a != pooling_b:
            return Explanation("pooling", f"{section.place}: of {title}, A has {pooling_a}; B has {pooling_b}")
    return None


def _explain_layer_order(section: CodeSection) -> Explanation | None:
    """Check whether one side adds the output of a layer that the other side runs after the next layer."""
    explanation = explain_terms(section.place, section.a, section.b, section.reordered_terms)
    if explanation is None:
        return None
    reason = f"{section.title} runs before a layer on one side and after it on the other, such as a normalization at "
    return Explanation("layer_order", f"{explanation.sentence}: {reason}the start or at the end of a block")


def _explain_changed_activation(section: CodeSection) -> Explanation | None:
    """Check whether a = f_a(x) and b = f_b(x) for two activations and one x, which need not be an earlier array."""
    names = find_changed_activation(section.a, section.b)
    if names is None or {*names} == {"softmax", "exp"}:  # one side divides any positive array by the sum of the array
        return None
    sentence = f"A has {names[0]} at the end, B {names[1]}"
    if {*names} == {NO_ACTIVATION, "the square"}:  # the other side may have the absolute value
        sentence = "B has the square of A's array" if names[1] == "the square" else "A has the square of B's array"
    leaky, other = (names[0], "A") if names[0].startswith(LEAKY_RELU) else (names[1], "B")
    if leaky.startswith(LEAKY_RELU) and NO_ACTIVATION in names:  # two leaky ReLUs of unknown slopes fit as well
        negative = f"negative values of {other} are {leaky.removeprefix(LEAKY_RELU)} times the other side's"
        sentence = f"{negative}: the slopes of leaky ReLUs differ, or only {other} has one"
    return Explanation("activation", f"{section.place}: {sentence}")


def _explain_sum(section: CodeSection) -> list[Explanation] | None:
    """Check whether the code of A adds up earlier arrays, as a residual connection does, and B's code adds other ones.

    The list is empty if B adds the same arrays, and one of them differs already.
    """
    terms_b = section.list_terms("b")
    sum_a = find_sum(section.list_terms("a"), section.a)
    if sum_a is None:
        return None
    inherited = compute_sum(sum_a, terms_b)
    if inherited is not None and is_close(inherited, section.b):
        return []
    sum_b = find_sum(terms_b, section.b)
    if sum_b is None:
        return None
    cause = "residual" if sum_a.keys() < sum_b.keys() or sum_b.keys() < sum_a.keys() else "addition"
    sentence = f"{section.place}: A has {describe_sum(sum_a)}, B has {describe_sum(sum_b)}"
    return [Explanation(cause, sentence)]


def _explain_zeros(section: CodeSection) -> Explanation | None:
    """Check whether one side passes an earlier array, such as an encoder's last state, and the other only zeros."""
    for side, other, array, zeros in (("A", "B", section.a, section.b), ("B", "A", section.b, section.a)):
        if not zeros.any():
            terms = [
                (name + title, term)
                for title, earlier in reversed(section.shared_terms)
                for name, term in list_reduced(earlier, array.shape)
            ]
            title = next((title for title, term in terms if is_close(term, array)), None)
            if title is None:
                return None
            return Explanation("residual", f"{section.place}: {side} passes {title}, {other} only zeros")
    return None


def _explain_constant(section: CodeSection) -> Explanation | None:
    """Check whether A and B add different arrays that are the same for every example, such as position embeddings."""
    difference = section.b - section.a
    if len(difference) < 2 or not is_close(np.broadcast_to(difference[:1], difference.shape), difference):
        return None
    sentence = (
        f"{section.place}: A and B add different arrays, but the same to every example, such as embeddings of positions"
    )
    for name, weight in section.weights.items():
        for change, candidate in _list_changes(weight):
            if candidate.size == difference[0].size and is_close(candidate.ravel(), difference[0].ravel()):
                sentence = f"{section.place}: B {change} {name}, which is the same for every example"
                return Explanation("constant_term", sentence)
    return Explanation("constant_term", sentence, confirmed=False)


def _list_changes(weight: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return faults that B may have if A adds a parameter, and how each changes the sum."""
    return [
        ("does not add", -weight),
        ("adds twice", weight),
        *((f"adds, reversed along axis {axis},", np.flip(weight, axis) - weight) for axis in range(weight.ndim)),
    ]


def _find_function(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the name of the function that computes the result from x, with its axes if it has some."""
    name = find_activation(x, result)
    return name if name and "softmax" not in name else find_vector_function(x, result) or name


def _find_pooling(x: np.ndarray, result: np.ndarray, section: CodeSection) -> str | None:
    """Return the name of the pooling that computes the array of the section from a layer's output."""
    tokens = unpack_tokens(x, section.batch)
    pooling = find_pooling(tokens, result, section.masks)
    return pooling or find_pooling(section.choose_features(tokens), result, section.masks)


def _explain_function(section: CodeSection) -> Explanation | None:
    """Check whether A and B apply different known functions to the output of a preceding layer."""
    for title, output in reversed(section.known_outputs):
        for find, cause in (
            (_find_function, "activation"),
            (find_scaled_activation, "scale"),
            (lambda x, result: _find_pooling(x, result, section), "pooling"),
        ):
            function_a = find(output, section.a)  # the function's name
            function_b = find(output, section.b) if function_a else None
            if function_a and function_b and function_a != function_b:
                part = f", {section.part}" if section.features else ""
                sentence = f"between {title} and {section.title}{part}: A has {function_a}, B {function_b}"
                return Explanation(_find_cause((function_a, function_b)) or cause, sentence)
    return None


def _find_cause(functions: tuple[str, str]) -> str | None:
    """Return the cause of two functions if one of them is a function of vectors; softmax alone is an activation."""
    vector_functions = [name for name in functions if AXES_OF_VECTORS in name]
    if any("softmax" not in name for name in vector_functions):
        return "vector_function"
    return "softmax_axis" if len({name.partition(AXES_OF_VECTORS)[0] for name in functions}) == 1 else None
