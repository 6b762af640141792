"""Transforms of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from common.data.transforms.transform import (
    KEY,
    Example,
    check_ignored_label,
    describe_arrays,
    require,
    require_probability,
)
from common.errors import UserError


@dataclass(frozen=True)
class TokenMasking:
    """Hide tokens and make them the labels, for a masked language model (Devlin et al., 2019).

    A token is chosen with `probability`, except for the tokens of `special`. 80 % of the chosen tokens become
    `mask_token`, 10 % a random token below `vocabulary`, and 10 % stay. All others get the label that the task ignores.
    """

    training_only: ClassVar[bool] = False  # without it, evaluations would have other labels

    mask_token: int
    vocabulary: int
    probability: float = 0.15
    special: Sequence[int] = ()
    array: str = ""  # the tokens; empty: the only input that is some
    ignored_label: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_probability("token_masking", self.probability)
        for name, least in (("mask_token", 0), ("vocabulary", 1)):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
            require(is_count, f"token_masking: {name}", value, f"a whole number, at least {least}")
        is_list = isinstance(self.special, list | tuple) and all(isinstance(token, int) for token in self.special)
        require(is_list, "token_masking: special", self.special, "a list of tokens")

    def bind(self, example: Example) -> Self:
        """Return the transform with the name of the tokens. Raise UserError if the examples have none."""
        is_tokens = {name: array.ndim == 1 and array.dtype.kind == "i" for name, array in example.items()}
        names = [self.array] if self.array else [name for name in is_tokens if is_tokens[name] and name != "labels"]
        if len(names) != 1 or not is_tokens.get(names[0]):
            raise UserError(
                f"{KEY}: token_masking: needs tokens [length] of integers, but an example has "
                f"{describe_arrays(example)}; name them by array: NAME"
            )
        if example["labels"].shape != example[names[0]].shape:
            raise UserError(
                f"{KEY}: token_masking: needs a label for each token, which it replaces, but an example has "
                f"{describe_arrays(example)}"
            )
        check_ignored_label("token_masking", example["labels"], self.ignored_label)
        return replace(self, array=names[0])

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the example with hidden tokens and new labels."""
        assert self.ignored_label is not None, "bind the transform first"
        tokens = example[self.array]
        choice, replacement = generator.random((2, len(tokens)))
        random_tokens = generator.integers(0, self.vocabulary, len(tokens), tokens.dtype)
        is_chosen = (choice < self.probability) & ~np.isin(tokens, self.special)
        hidden = np.where(replacement < 0.8, tokens.dtype.type(self.mask_token), random_tokens)
        labels = np.where(is_chosen, tokens, self.ignored_label).astype(example["labels"].dtype)
        return {**example, self.array: np.where(is_chosen & (replacement < 0.9), hidden, tokens), "labels": labels}
