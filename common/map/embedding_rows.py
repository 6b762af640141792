"""Alignment of embeddings that have more rows in PyTorch than in Keras.

The positions of RoBERTa and OPT begin in the third row in PyTorch and in the first row in Keras. Tables of tokens often
have unused rows at their end.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from common.map.sublayers import Sublayer, TorchSources
from common.map.transformation import SourceParameter

Sizes = tuple[int, ...]


def align_embedding_rows(
    torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer], at_end: bool
) -> list[Sublayer]:
    """Shorten PyTorch's embeddings to the rows that Keras's have, and return all sublayers.

    Embeddings are shortened only if both sides then have equal numbers of embeddings of these sizes.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
        at_end: Whether Keras's embeddings have the last rows; otherwise they have the first ones.
    """
    torch_counts, keras_counts = _count_embeddings(torch_sublayers), _count_embeddings(keras_sublayers)
    aligned = []
    for sublayer in torch_sublayers:
        sizes = _find_shorter(sublayer, torch_counts, keras_counts)
        if sizes is None:
            aligned.append(sublayer)
            continue
        first = sublayer.sizes[0] - sizes[0] if at_end else 0
        weight = sublayer.variables["weight"]
        assert isinstance(weight, TorchSources)
        sources = TorchSources((SourceParameter(weight.sources[0].name, (first, first + sizes[0])),))
        aligned.append(replace(sublayer, sizes=sizes, variables={"weight": sources}))
    return aligned


def _count_embeddings(sublayers: Sequence[Sublayer]) -> Counter[Sizes]:
    return Counter(sublayer.sizes for sublayer in sublayers if sublayer.kind == "embedding")


def _find_shorter(sublayer: Sublayer, torch_counts: Counter[Sizes], keras_counts: Counter[Sizes]) -> Sizes | None:
    """Return the size of Keras's shorter embeddings, the target size of PyTorch's embedding; None if unclear."""
    if sublayer.kind != "embedding" or keras_counts[sublayer.sizes]:
        return None
    rows, width = sublayer.sizes
    shorter = [
        sizes
        for sizes, count in keras_counts.items()
        if sizes[1] == width and sizes[0] < rows and not torch_counts[sizes] and count == torch_counts[sublayer.sizes]
    ]
    return shorter[0] if len(shorter) == 1 else None
