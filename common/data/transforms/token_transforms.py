"""Transforms of tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from common.data.transforms.transform import (
    KEY,
    ONE_LABEL,
    Example,
    IgnoredLabels,
    check_ignored_label,
    describe_arrays,
    is_number,
    require,
    require_probability,
)
from common.errors import UserError


@dataclass(frozen=True)
class TokenMasking:
    """Hide tokens and make them the labels, for a masked language model (Devlin et al., 2019).

    A token is chosen with `probability`, except for the tokens of `special`. 80 % of the chosen tokens become
    `mask_token`, 10 % a random token below `vocabulary`, and 10 % stay. All others get the label that the task ignores.
    If the task has several outputs, the new labels belong to the output that has a label for each token.
    """

    training_only: ClassVar[bool] = False  # without it, evaluations would have other labels

    mask_token: int
    vocabulary: int
    probability: float = 0.15
    special: Sequence[int] = ()
    array: str = ""  # the tokens; empty: the only input of tokens
    ignored_labels: IgnoredLabels = field(default_factory=lambda: ONE_LABEL, kw_only=True)

    def __post_init__(self) -> None:
        require_probability("token_masking", self.probability)
        for name, least in (("mask_token", 0), ("vocabulary", 1)):
            _require_count(f"token_masking: {name}", getattr(self, name), least)
        is_list = isinstance(self.special, list | tuple) and all(isinstance(token, int) for token in self.special)
        require(is_list, "token_masking: special", self.special, "a list of tokens")

    def bind(self, example: Example) -> Self:
        """Return the transform with the name of the tokens. Raise UserError if the examples have none."""
        array = _find_tokens("token_masking", self.array, example, self.ignored_labels)
        labels = {
            name: label for name, label in self.ignored_labels.items() if example[name].shape == example[array].shape
        }
        if len(labels) != 1:
            raise UserError(
                f"{KEY}: token_masking: needs {'one array with ' if labels else ''}a label for each token, which it "
                f"replaces, but an example has {describe_arrays(example)}"
            )
        ((name, ignored_label),) = labels.items()
        check_ignored_label("token_masking", example[name], ignored_label)
        return replace(self, array=array, ignored_labels=labels)

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the example with hidden tokens and new labels."""
        ((name, ignored_label),) = self.ignored_labels.items()  # `bind` has left one
        assert ignored_label is not None
        tokens = example[self.array]
        choice, replacement = generator.random((2, len(tokens)))
        random_tokens = generator.integers(0, self.vocabulary, len(tokens), tokens.dtype)
        is_chosen = (choice < self.probability) & ~np.isin(tokens, self.special)
        hidden = np.where(replacement < 0.8, tokens.dtype.type(self.mask_token), random_tokens)
        labels = np.where(is_chosen, tokens, ignored_label).astype(example[name].dtype)
        return {**example, self.array: np.where(is_chosen & (replacement < 0.9), hidden, tokens), name: labels}


@dataclass(frozen=True)
class SpanCorruption:
    """Cut spans out of the tokens and make them a decoder's targets, as T5 is pretrained (Raffel et al., 2020).

    The share `probability` of the tokens is cut out, in spans of `mean_length` tokens on average. No two spans touch.
    As in T5, the first token stays, and the last token is in a span. The k-th span is replaced by the token
    `first_sentinel` - k. The labels are, for each span, its sentinel and its tokens. `decoder_array` holds the labels
    moved by one position, after `start_token`. `end_token` ends the tokens and the labels. All examples have the same
    numbers of spans and of tokens.
    """

    training_only: ClassVar[bool] = False  # without it, evaluations would have other labels

    first_sentinel: int
    end_token: int = 1
    start_token: int = 0
    probability: float = 0.15
    mean_length: float = 3.0
    array: str = ""  # the tokens; empty: the only input of tokens
    decoder_array: str = "decoder_input_ids"
    ignored_labels: IgnoredLabels = field(default_factory=lambda: ONE_LABEL, kw_only=True)

    def __post_init__(self) -> None:
        require_probability("span_corruption", self.probability)
        for name in ("first_sentinel", "end_token", "start_token"):
            _require_count(f"span_corruption: {name}", getattr(self, name), 0)
        require(is_number(self.mean_length, 1), "span_corruption: mean_length", self.mean_length, "at least 1")

    def bind(self, example: Example) -> Self:
        """Return the transform with the name of the tokens. Raise UserError if it does not fit the examples."""
        array = _find_tokens("span_corruption", self.array, example, self.ignored_labels)
        if [*self.ignored_labels] != [*ONE_LABEL]:
            raise UserError(
                f"{KEY}: span_corruption: makes the labels of one output, but the task has several; remove it"
            )
        length = len(example[array])
        if not isinstance(self.decoder_array, str) or self.decoder_array in example:
            raise UserError(
                f"{KEY}: span_corruption: decoder_array={self.decoder_array}: must be a name that no array has"
            )
        if others := [name for name in example if name not in (array, "labels") and example[name].shape == (length,)]:
            raise UserError(
                f"{KEY}: span_corruption: changes the number of tokens, but not {others[0]}; remove that array. "
                "The examples are blocks without padding"
            )
        cut, spans = self._count(length)
        if not spans <= cut < length or spans > length - cut:
            raise UserError(
                f"{KEY}: span_corruption: {length} tokens are too few for {spans} spans of {cut} tokens together; take "
                "longer examples or a lower probability"
            )
        if spans > self.first_sentinel + 1:
            raise UserError(
                f"{KEY}: span_corruption: first_sentinel={self.first_sentinel}: too small for {spans} sentinels, which "
                "count down from it"
            )
        return replace(self, array=array)

    def _count(self, length: int) -> tuple[int, int]:
        """Return (number of tokens to cut out, number of spans) for `length` tokens, both at least 1."""
        cut = max(1, round(length * self.probability))
        return cut, max(1, round(cut / self.mean_length))

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the example with shorter tokens, labels and the inputs of a decoder."""
        tokens = example[self.array]
        cut, spans = self._count(len(tokens))
        is_sentinel = (tokens <= self.first_sentinel) & (tokens > self.first_sentinel - spans)
        if is_sentinel.any():
            raise UserError(
                f"{KEY}: span_corruption: the data has the token {tokens[is_sentinel][0]}, which is a sentinel; choose "
                f"a first_sentinel such that no example has it or the {spans - 1} tokens before it"
            )
        kept_lengths, cut_lengths = (_divide(count, spans, generator) for count in (len(tokens) - cut, cut))
        ends = np.stack([kept_lengths, cut_lengths], 1).cumsum()  # ends of the parts; kept and cut parts alternate
        parts = np.split(tokens, ends[:-1])
        sentinels = np.split(tokens.dtype.type(self.first_sentinel) - np.arange(spans, dtype=tokens.dtype), spans)
        end = np.array([self.end_token], tokens.dtype)
        inputs = [piece for pair in zip(parts[::2], sentinels, strict=True) for piece in pair]
        targets = [piece for pair in zip(sentinels, parts[1::2], strict=True) for piece in pair]
        labels = np.concatenate([*targets, end])
        start = np.array([self.start_token], tokens.dtype)
        return {
            **example,
            self.array: np.concatenate([*inputs, end]),
            self.decoder_array: np.concatenate([start, labels[:-1]]),
            "labels": labels,
        }


def _divide(count: int, parts: int, generator: np.random.Generator) -> np.ndarray:
    """Divide a number into positive parts. All divisions are equally likely."""
    cuts = np.sort(generator.choice(count - 1, parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=count)


def _find_tokens(transform: str, array: str, example: Example, labels: Iterable[str]) -> str:
    """Return the name of the tokens of an example: `array`, or the only input of tokens if `array` is empty."""
    is_tokens = {name: value.ndim == 1 and value.dtype.kind == "i" for name, value in example.items()}
    names = [array] if array else [name for name in is_tokens if is_tokens[name] and name not in labels]
    if len(names) != 1 or not is_tokens.get(names[0]):
        raise UserError(
            f"{KEY}: {transform}: needs tokens [length] of integers, but an example has {describe_arrays(example)}; "
            "name them by array: NAME"
        )
    return names[0]


def _require_count(name: str, value: object, at_least: int) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= at_least
    require(is_count, name, value, f"a whole number, at least {at_least}")
