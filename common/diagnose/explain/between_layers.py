"""Reasons why the code between two layers computes different arrays in A and in B from the same outputs of layers.

A is the reference run of a diagnosis, and B the run that is compared with it. Layers hold parameters; the code between
them, such as an activation, pooling or attention, holds none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.diagnose.explain.activation_difference import find_activation, find_scaled_activation
from common.diagnose.explain.attention import find_attention
from common.diagnose.explain.layer import explain_numbers
from common.diagnose.explain.pooling import find_pooling
from common.diagnose.findings import Explanation
from common.diagnose.layout_conversion import unpack_tokens
from common.diagnose.rounding import is_close

EARLIER_LAYERS = 4  # number of preceding layers whose outputs the code may use
PROJECTIONS = 3  # query, key and value


@dataclass(frozen=True)
class LayerOutput:
    """Output of a layer: its title in reports, and A's array in the layout of B's."""

    title: str
    returned: np.ndarray | None


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
    """

    tensor: str
    title: str
    a: np.ndarray
    b: np.ndarray
    earlier_outputs: Sequence[LayerOutput]
    batch: Mapping[str, np.ndarray]

    @property
    def masks(self) -> dict[str, np.ndarray]:
        """Arrays [n, tokens] of the batch that hold only zeros and ones."""
        return {
            name: array for name, array in self.batch.items() if array.ndim == 2 and set(np.unique(array)) <= {0, 1}
        }

    @property
    def known_outputs(self) -> list[tuple[str, np.ndarray]]:
        """Titles and outputs of the layers that ran last before the code, the latest last."""
        return [
            (output.title, output.returned)
            for output in self.earlier_outputs[-EARLIER_LAYERS:]
            if output.returned is not None
        ]


def explain_code(section: CodeSection) -> list[Explanation]:
    """Return what the code computes differently.

    The list is empty if both arrays equal the same variant of attention, up to a larger tolerance than rounding's.
    """
    tensor, a, b = section.tensor, section.a, section.b
    if a.shape != b.shape:
        return [Explanation("shape", f"{tensor} is {list(a.shape)} in A and {list(b.shape)} in B")]
    if explanation := explain_numbers(tensor, a, b) or _explain_function(section):
        return [explanation]
    if (explanations := _explain_attention(section)) is not None:
        return explanations
    if a.ndim == 2 and is_close(np.sort(a, axis=1), np.sort(b, axis=1)):
        sentence = f"{tensor} has the same values in another order: flattened differently"
        return [Explanation("flatten_order", sentence)]
    factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if factor and is_close(a * factor, b):
        return [Explanation("scale", f"{tensor} is {factor:.6g} times A's")]
    place = (
        f"between {section.earlier_outputs[-1].title} and {section.title}"
        if section.earlier_outputs
        else f"before {section.title}"
    )
    sentence = f"{tensor} differs although all layers return the same: compare the code {place}"
    return [Explanation("code_between_layers", sentence, confirmed=False)]


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
