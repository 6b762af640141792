"""Differences between two attentions that are compared as a whole: with their projections, from input to output.

A is the reference run of a diagnosis, and B the run that is compared with it. Only the first input of a layer is known.
The input that a cross-attention attends to, its memory, is searched among the arrays of the layers before it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from common.diagnose.explain.attention import find_attention
from common.diagnose.findings import Explanation
from common.diagnose.layer_match import LayerMatch

Weights = Mapping[str, np.ndarray]
MOST_MEMORIES = 16  # largest number of arrays that a cross-attention may attend to; each variant is tried with each
LARGEST_CONDITION = 1e6  # largest condition number of an output projection that can be undone to enough digits


def explain_whole_attention(
    layer: LayerMatch,
    x: np.ndarray,
    outputs: tuple[np.ndarray, np.ndarray],
    weights: Weights,
    masks: Weights,
    memories: Sequence[np.ndarray] = (),
) -> Explanation | None:
    """Explain the differences of A's and B's attention. Return None if A's attention is not a known variant.

    Args:
        layer: The pair of attentions.
        x: Input of both [n, tokens, features].
        outputs: Outputs of A and B [n, tokens, features].
        weights: Weights of both models, by PyTorch's parameter name.
        masks: Masks [n, tokens] by name.
        memories: Arrays to which the layer may attend instead of `x`.
    """
    projections = _read_projections(layer, weights)
    if projections is None or x.ndim != 3 or any(output.shape != x.shape for output in outputs):
        return None
    *inputs, (output_weight, output_bias) = projections
    if output_weight.shape != (x.shape[-1],) * 2 or np.linalg.cond(output_weight) > LARGEST_CONDITION:
        return None
    attended = [np.linalg.solve(output_weight, (output - output_bias)[..., None])[..., 0] for output in outputs]
    for memory in _choose_memories(x, memories):
        projected = _project(inputs, x, memory)
        if projected is None:
            continue
        for is_real in (None, *(_list_real_tokens(x, masks) if memory is x else ())):
            variant_a = find_attention(projected, masks, attended[0], is_real)
            if variant_a is None:
                continue
            variant_b = find_attention(projected, masks, attended[1], is_real, expected=variant_a)
            is_swapped = variant_b is None and _finds_swapped(inputs, x, attended[1])
            return _explain_swapped("B") if is_swapped else _compare_variants(variant_a, variant_b)
    projected = _project(inputs, x, x)
    is_swapped = projected is not None and find_attention(projected, masks, attended[1]) is not None
    return _explain_swapped("A") if is_swapped and _finds_swapped(inputs, x, attended[0]) else None


def _list_real_tokens(x: np.ndarray, masks: Weights) -> list[np.ndarray]:
    """Return masks of the elements of real tokens, whose results alone count: the frameworks mask queries otherwise."""
    fitting = [mask for mask in masks.values() if mask.shape == x.shape[:2] and mask.any()]
    return [np.broadcast_to(mask[..., None].astype(bool), x.shape) for mask in fitting]


def _finds_swapped(inputs: Sequence[tuple[np.ndarray, np.ndarray]], x: np.ndarray, attended: np.ndarray) -> bool:
    """Check whether a self-attention attends to the examples in axis 0 instead of the tokens in axis 1."""
    swapped = x.swapaxes(0, 1)
    projected = _project(inputs, swapped, swapped)
    return projected is not None and find_attention(projected, {}, attended.swapaxes(0, 1)) is not None


def _explain_swapped(side: str) -> Explanation:
    sentence = f"{side}'s attention takes axis 0 for the tokens, which has the examples: is batch_first=True missing?"
    return Explanation("time_axis", sentence)


def _choose_memories(x: np.ndarray, memories: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return `x` and the distinct memories, at most MOST_MEMORIES arrays.

    Memories with another number of tokens than `x` come before memories with the same number.
    """
    distinct: dict[tuple[tuple[int, ...], int], np.ndarray] = {}
    for array in (x, *memories):
        if array.ndim == 3:
            distinct.setdefault((array.shape, hash(array.tobytes())), array)
    ordered = sorted(distinct.values(), key=lambda array: array is not x and array.shape[1] == x.shape[1])
    return ordered[:MOST_MEMORIES]


def _project(
    inputs: Sequence[tuple[np.ndarray, np.ndarray]], x: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return query, key and value; None if the layer cannot receive this memory."""
    sizes = [weight.shape[1] for weight, _ in inputs]
    if memory.ndim != 3 or len(memory) != len(x) or sizes != [x.shape[-1], memory.shape[-1], memory.shape[-1]]:
        return None
    query, key, value = (
        array @ weight.T + bias for array, (weight, bias) in zip((x, memory, memory), inputs, strict=True)
    )
    return (query, key, value) if query.shape == x.shape and key.shape == value.shape else None


def _compare_variants(variant_a: Mapping[str, str], variant_b: Mapping[str, str] | None) -> Explanation | None:
    if variant_b is None:
        known = ", ".join(f"{name} {value}" for name, value in variant_a.items())
        return Explanation("layer", f"A's attention has {known}; B's has another formula", confirmed=False)
    name = next((name for name in variant_a if variant_a[name] != variant_b[name]), None)
    if name is None:
        return None
    sentence = f"attention's {name} is {variant_a[name]} in A and {variant_b[name]} in B"
    return Explanation(f"attention_{name}", sentence)


def _read_projections(layer: LayerMatch, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return weight and bias of the projections of query, key, value and output; None for unknown names."""
    joined = weights.get(f"{layer.name}.in_proj_weight")
    if joined is not None:
        size = len(joined)
        bias = weights.get(f"{layer.name}.in_proj_bias", np.zeros(size))
        output = _read_linear(f"{layer.name}.out_proj", weights)
        inputs = zip(np.split(joined, 3), np.split(bias, 3), strict=True)
        return None if output is None else [*inputs, output]
    for paths in (layer.paths_a, layer.paths_b):
        linears = [linear for path in paths if (linear := _read_linear(path, weights)) is not None]
        if len(linears) == len(paths) == 4:
            return linears
    return None


def _read_linear(path: str, weights: Weights) -> tuple[np.ndarray, np.ndarray] | None:
    weight = weights.get(f"{path}.weight")
    return None if weight is None else (weight, weights.get(f"{path}.bias", np.zeros(len(weight))))
