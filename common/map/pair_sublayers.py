"""Pairs of sublayers: pieces of layers with the same variables in both models.

The signature of a sublayer is its kind and sizes. If both models have equally many sublayers of a signature, all of
them are paired. Otherwise the two lists of sublayers are aligned in the order of execution, as texts are in a diff.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from common.map.layer_roles import LayerRoles, order_by_roles
from common.map.sublayers import LayerPair, Sublayer

# Scores of two aligned sublayers: a known pair, equal signatures, equal last words
PAIRED_SCORE, SIGNATURE_SCORE, WORD_SCORE = 4, 2, 1


def pair_by_signature(
    torch_sublayers: Sequence[Sublayer],
    keras_sublayers: Sequence[Sublayer],
    torch_roles: LayerRoles,
    keras_roles: LayerRoles,
) -> list[LayerPair]:
    """Pair sublayers of equal kind and sizes by the last words of their paths, otherwise by their roles and order.

    The pairs follow the words if both models use the same words, then the layers before and after, then the order of
    execution. Sublayers of a kind stay unpaired if the models have different numbers of them.
    """
    layer_pairs: list[LayerPair] = []
    for _ in range(2):  # the second pass knows the pairs of all layers of the first one
        known = {pair.torch.path: pair.keras.path for pair in layer_pairs}
        layer_pairs = [
            LayerPair(torch, keras)
            for torch_group, keras_group in _list_groups(torch_sublayers, keras_sublayers)
            for torch, keras in zip(
                torch_group, _order(torch_group, keras_group, torch_roles, keras_roles, known), strict=True
            )
        ]
    return layer_pairs


def _list_groups(
    torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer]
) -> Iterator[tuple[list[Sublayer], list[Sublayer]]]:
    """Yield the sublayers of each signature that both models have equally often, divided by their roles."""
    for signature in dict.fromkeys(sublayer.signature for sublayer in torch_sublayers):
        torch_matches = [sublayer for sublayer in torch_sublayers if sublayer.signature == signature]
        keras_matches = [sublayer for sublayer in keras_sublayers if sublayer.signature == signature]
        if len(torch_matches) == len(keras_matches):
            yield from _divide_by_role(torch_matches, keras_matches)


def _order(
    torch_group: list[Sublayer],
    keras_group: list[Sublayer],
    torch_roles: LayerRoles,
    keras_roles: LayerRoles,
    known: Mapping[str, str],
) -> list[Sublayer]:
    """Return the sublayers of Keras in the order of their counterparts, by their words or else by their roles."""
    torch_words, keras_words = _number_words(torch_group), _number_words(keras_group)
    if sorted(torch_words) == sorted(keras_words) and len({word for word, _ in torch_words}) > 1:
        return [keras_group[keras_words.index(numbered_word)] for numbered_word in torch_words]
    return order_by_roles(torch_group, keras_group, torch_roles, keras_roles, known)


def align_sublayers(
    torch_sublayers: Sequence[Sublayer], keras_sublayers: Sequence[Sublayer], layer_pairs: Sequence[LayerPair]
) -> list[LayerPair]:
    """Pair the sublayers whose signature occurs in both models, but not equally often.

    The pairs come from the best alignment of both models in the order of execution. Known pairs count most, then equal
    signatures, then equal last words of the paths.

    Args:
        torch_sublayers: All sublayers of PyTorch's model.
        keras_sublayers: All sublayers of Keras's model.
        layer_pairs: The known pairs.

    Returns:
        The additional pairs.
    """
    torch_partners = {id(pair.torch): pair.keras for pair in layer_pairs}
    keras_paired = {id(pair.keras) for pair in layer_pairs}
    torch_unpaired = {sublayer.signature for sublayer in torch_sublayers if id(sublayer) not in torch_partners}
    keras_unpaired = {sublayer.signature for sublayer in keras_sublayers if id(sublayer) not in keras_paired}
    if not torch_unpaired & keras_unpaired:
        return []

    def score(a: Sublayer, b: Sublayer) -> int:
        if id(a) in torch_partners or id(b) in keras_paired:
            return PAIRED_SCORE if torch_partners.get(id(a)) is b else 0
        return (a.signature == b.signature) * (SIGNATURE_SCORE + WORD_SCORE * (_last_word(a) == _last_word(b)))

    scores = {(i, j): score(a, b) for i, a in enumerate(torch_sublayers) for j, b in enumerate(keras_sublayers)}
    aligned = _align(scores, len(torch_sublayers), len(keras_sublayers))
    return [
        LayerPair(torch_sublayers[i], keras_sublayers[j])
        for i, j in aligned
        if id(torch_sublayers[i]) not in torch_partners
    ]


def list_unpaired(
    torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer], layer_pairs: list[LayerPair]
) -> tuple[list[Sublayer], list[Sublayer]]:
    """Return the sublayers of PyTorch and of Keras that are in no pair."""
    torch_paired, keras_paired = [pair.torch for pair in layer_pairs], [pair.keras for pair in layer_pairs]
    return (
        [sublayer for sublayer in torch_sublayers if sublayer not in torch_paired],
        [sublayer for sublayer in keras_sublayers if sublayer not in keras_paired],
    )


def _divide_by_role(
    torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]
) -> list[tuple[list[Sublayer], list[Sublayer]]]:
    """Divide single variables of one signature by the last word of their roles, if both models use the same words.

    Such a word is the "g" of a variable "weight_g". If only "bias" is in both models equally often, the biases are
    divided from the rest: Keras's other words, such as gamma, may mean something else in PyTorch.
    """
    if torch_sublayers[0].kind != "parameter":
        return [(torch_sublayers, keras_sublayers)]
    torch_words, keras_words = (
        [_get_role_word(sublayer) for sublayer in sublayers] for sublayers in (torch_sublayers, keras_sublayers)
    )
    if Counter(torch_words) != Counter(keras_words):
        torch_words, keras_words = (
            [word if word == "bias" else "" for word in words] for words in (torch_words, keras_words)
        )
    if Counter(torch_words) != Counter(keras_words):
        return [(torch_sublayers, keras_sublayers)]
    return [
        (
            [sublayer for sublayer, other in zip(torch_sublayers, torch_words, strict=True) if other == word],
            [sublayer for sublayer, other in zip(keras_sublayers, keras_words, strict=True) if other == word],
        )
        for word in dict.fromkeys(torch_words)
    ]


def _get_role_word(sublayer: Sublayer) -> str:
    (role,) = sublayer.variables
    return role.rpartition("_")[2]


def _align(scores: Mapping[tuple[int, int], int], rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the pairs of rows and columns, both in order, whose scores have the largest sum."""
    best = [[0] * (columns + 1) for _ in range(rows + 1)]  # the largest sum of the rows and columns from here on
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            paired = scores[i, j] + best[i + 1][j + 1] if scores[i, j] else 0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], paired)
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if scores[i, j] and best[i][j] == scores[i, j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _number_words(sublayers: Sequence[Sublayer]) -> list[tuple[str, int]]:
    """Return the last word of every path, and the number of earlier sublayers with the same word."""
    counts: Counter[str] = Counter()
    numbered_words = []
    for sublayer in sublayers:
        word = _last_word(sublayer)
        numbered_words.append((word, counts[word]))
        counts[word] += 1
    return numbered_words


def _last_word(sublayer: Sublayer) -> str:
    return re.split(r"[./]", sublayer.path)[-1].lower().replace("_", "")
