"""Reasons why the code between two layers computes different arrays in A and in B from the same outputs of layers.

A is the reference run of a diagnosis, and B the run that is compared with it. Layers hold parameters; the code between
them, such as an activation, pooling or attention, holds none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.diagnose.explain.activation_difference import find_activation, find_scaled_activation
from common.diagnose.explain.attention import find_attention, list_masks
from common.diagnose.explain.layer import explain_numbers
from common.diagnose.explain.pooling import find_pooling
from common.diagnose.explain.sums import Terms, compute_sum, describe_sum, find_sum
from common.diagnose.findings import Explanation
from common.diagnose.layout_conversion import unpack_tokens
from common.diagnose.rounding import is_close

EARLIER_LAYERS = 4  # number of preceding layers whose outputs the code may use
PROJECTIONS = 3  # query, key and value
LEAST_ACTIVE = 0.1  # share of elements that ReLU leaves, which suffices to recognize a sum


@dataclass(frozen=True)
class LayerOutput:
    """The arrays that a layer returned and received before the code, in the layout of B's.

    Attributes:
        title: Title of the layer in reports.
        returned: What A's layer returned, which B's code receives too; None if it is not known.
        received_in_a: What A's layer received; None if it is not known.
        received_in_b: What the code before B's layer passed to it; None if it is not known.
    """

    title: str
    returned: np.ndarray | None
    received_in_a: np.ndarray | None = None
    received_in_b: np.ndarray | None = None


@dataclass(frozen=True)
class CodeSection:
    """Code between layers that computes different arrays in A and in B.

    Attributes:
        tensor: Name of the array that differs, such as "input of classifier".
        title: Title of the layer that receives the array, or "the outputs".
        a: The array in A.
        b: The array in B, whose code received A's outputs of all layers.
        earlier_outputs: Outputs of the layers that ran before, the latest last.
        batch: Arrays of the first micro-batch, on which both models compute.
        weights: Weights of both models, by parameter name.
    """

    tensor: str
    title: str
    a: np.ndarray
    b: np.ndarray
    earlier_outputs: Sequence[LayerOutput]
    batch: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def masks(self) -> dict[str, np.ndarray]:
        """Arrays [n, tokens] of the batch that hold only zeros and ones, and whether token ids are not 0."""
        return list_masks(self.batch)

    @property
    def known_outputs(self) -> list[tuple[str, np.ndarray]]:
        """Titles and outputs of the layers that ran last before the code, the latest last.

        They are flattened if the code flattens the examples.
        """
        return [
            (output.title, self._flatten(output.returned))
            for output in self.earlier_outputs[-EARLIER_LAYERS:]
            if output.returned is not None
        ]

    def _flatten(self, output: np.ndarray) -> np.ndarray:
        is_flattened = self.a.ndim == 2 < output.ndim and len(output) == len(self.a) and output.size == self.a.size
        return output.reshape(self.a.shape) if is_flattened else output

    def list_terms(self, side: str) -> Terms:
        """Return what the last layers before the code received and returned on a side, in order, with titles."""
        terms = []
        for output in self.earlier_outputs[-EARLIER_LAYERS:]:
            received = output.received_in_a if side == "a" else output.received_in_b
            terms += [(f"the input of {output.title}", received), (f"the output of {output.title}", output.returned)]
        return [(title, array) for title, array in terms if array is not None and array.dtype.kind == "f"]

    @property
    def place(self) -> str:
        """The place of the code in reports."""
        if not self.earlier_outputs:
            return f"before {self.title}"
        return f"between {self.earlier_outputs[-1].title} and {self.title}"


def explain_code(section: CodeSection) -> list[Explanation]:
    """Return what the code computes differently.

    The list is empty if both arrays equal the same variant of attention, up to a larger tolerance than rounding's, or
    if an earlier array that differs already, such as the input of a residual block, explains the difference.
    """
    tensor, a, b = section.tensor, section.a, section.b
    if a.shape != b.shape:
        return [Explanation("shape", f"{tensor} is {list(a.shape)} in A and {list(b.shape)} in B")]
    if explanation := explain_numbers(tensor, a, b):
        return [explanation]
    if _is_inherited(section):
        return []
    if explanation := _explain_function(section):
        return [explanation]
    if (explanations := _explain_attention(section)) is not None:
        return explanations
    if (explanations := _explain_sum(section)) is not None:
        return explanations
    if explanation := explain_order(tensor, a, b) or _explain_constant(section):
        return [explanation]
    if a.ndim == 2 and is_close(np.sort(a, axis=1), np.sort(b, axis=1)):
        sentence = f"{tensor} has the same values in another order: flattened differently"
        return [Explanation("flatten_order", sentence)]
    factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if factor and is_close(a * factor, b):
        return [Explanation("scale", f"{tensor} is {factor:.6g} times A's")]
    sentence = f"{section.place}: the code computes another {tensor} from the same outputs of layers"
    return [Explanation("code_between_layers", sentence, confirmed=False)]


def explain_order(tensor: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether B's array is A's, read from the end along one axis."""
    axis = next((axis for axis in range(1, a.ndim) if is_close(np.flip(a, axis), b)), None)
    return None if axis is None else Explanation("reversed_axis", f"{tensor} is A's, reversed along axis {axis}")


def _is_inherited(section: CodeSection) -> bool:
    """Check whether both sides add the same to an earlier array that differs already, with or without ReLU after it."""
    for output in section.earlier_outputs:
        a, b = output.received_in_a, output.received_in_b
        if a is None or b is None or a.shape != section.a.shape or is_close(a, b):
            continue
        expected = section.a + (b - a)
        is_active = section.a > 0  # ReLU hides what the other elements were
        if is_close(expected, section.b) or (
            is_active.mean() > LEAST_ACTIVE
            and not (section.a < 0).any()
            and is_close(np.maximum(expected, 0)[is_active], section.b[is_active])
        ):
            return True
    return False


def _explain_sum(section: CodeSection) -> list[Explanation] | None:
    """Check whether the code of A adds up earlier arrays, as a residual connection does, and B's code others.

    The list is empty if B adds the same arrays, one of which differs already: the difference comes from there.
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


def _explain_constant(section: CodeSection) -> Explanation | None:
    """Check whether B adds another array than A, which is the same for every example, such as position embeddings."""
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


def _list_changes(weight: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return what B may do with a parameter that A adds, and how that changes the sum."""
    return [
        ("does not add", -weight),
        ("adds twice", weight),
        *((f"adds, reversed along axis {axis},", np.flip(weight, axis) - weight) for axis in range(weight.ndim)),
    ]


def _explain_function(section: CodeSection) -> Explanation | None:
    """Check whether A and B apply different known functions to the output of a preceding layer."""
    masks = section.masks
    for title, output in reversed(section.known_outputs):
        for find, cause in (
            (find_activation, "activation"),
            (find_scaled_activation, "scale"),
            (lambda x, result: find_pooling(unpack_tokens(x, section.batch), result, masks), "pooling"),
        ):
            function_a = find(output, section.a)  # the function's name
            function_b = find(output, section.b) if function_a else None
            if function_a and function_b and function_a != function_b:
                sentence = f"between {title} and {section.title}: A has {function_a}, B {function_b}"
                return Explanation(cause, sentence)
    return None


def _explain_attention(section: CodeSection) -> list[Explanation] | None:
    """Return how the attentions of A and B differ, or None if their code is not a known variant of attention.

    The last three layers must be the projections of query, key and value.
    """
    a, b = (unpack_tokens(array, section.batch) for array in (section.a, section.b))
    projections = [unpack_tokens(output, section.batch) for _, output in section.known_outputs[-PROJECTIONS:]]
    if len(projections) < PROJECTIONS or a.ndim != 3 or any(array.shape != a.shape for array in projections):
        return None
    query, key, value = projections
    attention_a = find_attention((query, key, value), section.masks, a)
    attention_b = find_attention((query, key, value), section.masks, b) if attention_a else None
    if not attention_a or not attention_b:
        return None
    return [
        Explanation(
            f"attention_{name}",
            f"before {section.title}: attention's {name} is {attention_a[name]} in A and {attention_b[name]} in B",
        )
        for name in attention_a
        if attention_a[name] != attention_b[name]
    ]
