"""Numbers of tokens that a script passes to its model beside padded sequences, for packed sequences and masks.

Only one of two scripts may have them in its batch: the other one finds the padding itself. For the script that follows
they are computed from the recorded sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLengths:
    """A rule that counts the tokens of sequences.

    Attributes:
        source: The name of the array of sequences [n, tokens, ...].
        padding: The number at every place after the last token.
        dtype: The type of the counts.
    """

    source: str
    padding: float
    dtype: np.dtype

    def compute(self, sequences: np.ndarray) -> np.ndarray:
        """Return the number of tokens [n] of sequences [n, tokens, ...]."""
        return _count_tokens(sequences, self.padding).astype(self.dtype)


def find_token_lengths(arrays: Mapping[str, np.ndarray]) -> dict[str, TokenLengths]:
    """Return the rules of the arrays of a batch that count the tokens of other arrays, by the name of the array.

    Args:
        arrays: The arrays of the batch, with an example in each row. Numbers of tokens are integers [n] that are not
            all the same.
    """
    rules = {}
    for name, lengths in arrays.items():
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or len(np.unique(lengths)) < 2:
            continue
        for source, sequences in arrays.items():
            if sequences.ndim < 2 or len(sequences) != len(lengths) or lengths.max() > sequences.shape[1]:
                continue
            padding = float(sequences[lengths.argmin()].flat[-1])
            if np.array_equal(_count_tokens(sequences, padding), lengths):
                rules[name] = TokenLengths(source, padding, lengths.dtype)
                break
    return rules


def _count_tokens(sequences: np.ndarray, padding: float) -> np.ndarray:
    """Return the number of tokens [n] up to the last one that is no padding."""
    is_token = (sequences != padding).reshape(*sequences.shape[:2], -1).any(2)
    return sequences.shape[1] - np.where(is_token.any(1), is_token[:, ::-1].argmax(1), sequences.shape[1])


def sort_by_length(examples: Mapping[str, np.ndarray], filled: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return recorded examples by falling length if the script's own are, as PyTorch's packed sequences may need it.

    Args:
        examples: The script's arrays with a row for each example.
        filled: The recorded arrays in their place.
    """
    for name in find_token_lengths(examples):
        lengths, recorded = examples[name].reshape(-1), filled.get(name)
        is_sorted = len({*lengths.tolist()}) > 1 and bool((np.diff(lengths) <= 0).all())
        if is_sorted and recorded is not None:
            order = np.argsort(-recorded.reshape(-1), kind="stable")
            return {key: array[order] if len(array) == len(order) else array for key, array in filled.items()}
    return dict(filled)
