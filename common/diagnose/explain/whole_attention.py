"""Differences between two attentions that are compared as a whole: with their projections, from input to output.

A is the reference run of a diagnosis, and B the run that is compared with it. Only an attention to its own input can be
computed again, because only the first input of a layer is known.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.explain.attention import find_attention
from common.diagnose.findings import Explanation
from common.diagnose.layer_match import LayerMatch

Weights = Mapping[str, np.ndarray]
LARGEST_CONDITION = 1e6  # of the output projection, beyond which it cannot be undone to enough digits


def explain_whole_attention(
    layer: LayerMatch, x: np.ndarray, outputs: tuple[np.ndarray, np.ndarray], weights: Weights, masks: Weights
) -> Explanation | None:
    """Return how the attentions of A and B differ, or None if A's is no known variant.

    Args:
        layer: The pair of attentions.
        x: What both receive [n, tokens, features].
        outputs: What A and B return [n, tokens, features].
        weights: Weights of both models, by PyTorch's parameter name.
        masks: Masks [n, tokens] by name.
    """
    projections = _read_projections(layer, weights)
    if projections is None or x.ndim != 3 or any(output.shape != x.shape for output in outputs):
        return None
    *inputs, (output_weight, output_bias) = projections
    if output_weight.shape != (x.shape[-1],) * 2 or np.linalg.cond(output_weight) > LARGEST_CONDITION:
        return None
    query, key, value = (x @ weight.T + bias for weight, bias in inputs)
    attended = [np.linalg.solve(output_weight, (output - output_bias)[..., None])[..., 0] for output in outputs]
    if any(projection.shape != x.shape for projection in (query, key, value)):
        return None
    variant_a, variant_b = (find_attention((query, key, value), masks, array) for array in attended)
    if variant_a is None:
        return None
    if variant_b is None:
        known = ", ".join(f"{name} {value}" for name, value in variant_a.items())
        return Explanation("layer", f"A's attention has {known}; B's is another one", confirmed=False)
    name = next((name for name in variant_a if variant_a[name] != variant_b[name]), None)
    if name is None:
        return None
    sentence = f"attention's {name} is {variant_a[name]} in A and {variant_b[name]} in B"
    return Explanation(f"attention_{name}", sentence)


def _read_projections(layer: LayerMatch, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return weight and bias of the projections of query, key, value and output; None if their names are not known."""
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
