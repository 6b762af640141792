"""The token cache: a corpus as token ids on disk, built once and opened memory-mapped by every process of a run.

An example is one sentence or a pair of sentences, [CLS] premise [SEP] hypothesis [SEP]. Its first segment ends with the
first [SEP]. A split of n examples with t tokens in total is four arrays:
    - `tokens` uint16 or uint32 [t];
    - `offsets` int64 [n + 1]: example i is tokens[offsets[i]:offsets[i + 1]];
    - `first_lengths` uint16 [n]: the number of tokens of the first segment;
    - `labels` int32 [n]: the index of the class.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from common.config.schema import Config
from common.data.atomic_directory import compute_fingerprint, open_or_build, read_manifest
from common.data.batches import Arrays
from common.data.cache import Cache
from common.data.identity import identify
from common.data.ragged import build_mask, compute_padded_width, locate_values
from common.data.text.token_cache_builder import TokenManifest, build_token_cache, get_max_vocabulary
from common.data.tokenizer_source import TokenizerSource

FORMAT = 2  # raise it whenever the files change, so that caches of the old format are built again
ARRAYS = ("tokens", "offsets", "first_lengths", "labels")


@dataclass(frozen=True)
class TokenizedSplit:
    """A split of texts in memory-mapped arrays of tokens. `ids` are indices of n examples."""

    tokens: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    labels: np.ndarray
    pad_id: int
    max_length: int  # `train.max_length`, to which longer examples were cut

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def example_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """No shapes: the width of all arrays depends on the batch, and unpadded arrays have another first axis."""
        return {}

    def padded_width(self, ids: np.ndarray) -> int:
        """Return the number of tokens to which a batch of these examples is padded."""
        return min(compute_padded_width(self.lengths(ids)), self.max_length)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each example, int64 [n]."""
        return self.offsets[ids + 1] - self.offsets[ids]

    def has_pairs(self) -> bool:
        """Check whether an example has a second segment."""
        return bool((np.diff(self.offsets) > self.first_lengths).any())

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """Return ones: all examples have the same weight."""
        return np.ones(len(ids))

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """Return ones: an example has one label."""
        return np.ones(len(ids))

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """Return `input_ids`, `token_type_ids`, `attention_mask` int32 [n, width] and `labels` int32 [n].

        The width is the padded width of the examples `batch`, which include `ids`.
        """
        width = self.padded_width(batch)
        tokens, types, positions, rows = self._concatenate(ids)
        input_ids = np.full((len(ids), width), self.pad_id, np.int32)
        input_ids[rows, positions] = tokens
        token_type_ids = np.zeros_like(input_ids)
        token_type_ids[rows, positions] = types
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "attention_mask": build_mask(self.lengths(ids), width),
            "labels": self.labels[ids],
        }

    def gather_unpadded(self, ids: np.ndarray) -> Arrays:
        """Return the t tokens of the examples one after the other, without padding.

        Only attention needs padding. The model copies the tokens into a padded layout [n, width] for it, and the
        results back.

        Returns:
            - `input_ids`, `token_type_ids` int32 [t];
            - `position_ids` int32 [t]: position of each token in its example, from 0;
            - `places` int32 [t]: index of each token in the padded layout, flattened to [n * width];
            - `attention_mask` int32 [n, width]: 1 for the real tokens of the padded layout;
            - `first_tokens` int32 [n]: index in [t] of the first token of each example;
            - `labels` int32 [n].
        """
        lengths = self.lengths(ids)
        width = int(lengths.max())
        tokens, types, positions, rows = self._concatenate(ids)
        return {
            "input_ids": tokens,
            "token_type_ids": types,
            "position_ids": positions,
            "places": (rows * width + positions).astype(np.int32),
            "attention_mask": build_mask(lengths, width),
            "first_tokens": (np.cumsum(lengths) - lengths).astype(np.int32),
            "labels": self.labels[ids],
        }

    def _concatenate(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the t tokens of the examples one after the other, and for each token its type, position and row.

        The type is 0 in the first segment and 1 after it. The row is the position of the example in `ids`, int64 [t].
        The others are int32 [t].
        """
        rows, positions = locate_values(self.lengths(ids))
        tokens = self.tokens[self.offsets[ids][rows] + positions].astype(np.int32)
        types = (positions >= self.first_lengths[ids][rows]).astype(np.int32)
        return tokens, types, positions.astype(np.int32), rows

    def count_tokens(self, arrays: Arrays) -> int:
        """Return the number of input ids, real and padding."""
        return arrays["input_ids"].size


@dataclass(frozen=True)
class TokenCache(Cache):
    """An opened token cache."""

    train: TokenizedSplit
    validation: TokenizedSplit
    vocabulary: int  # number of embeddings that the tokens need: the largest id + 1
    dropped: int  # rows without a gold label

    @property
    def tokenizer_directory(self) -> Path:
        """Directory of the tokenizer's files."""
        return self.directory / "tokenizer"

    def __str__(self) -> str:
        dropped = f", {self.dropped} rows without a gold label dropped" if self.dropped else ""
        return f"{super().__str__()}{dropped}"


def open_cache(config: Config, source: TokenizerSource | None) -> TokenCache:
    """Open the token cache of a config. Build the cache first if it is missing or damaged.

    Args:
        config: The config of the run.
        source: Pretrained checkpoint whose tokenizer and classes are used; None for a model with random initial
            weights.

    Raises:
        UserError: If the corpus is wrong.
    """
    key = compute_fingerprint(
        {
            "format": FORMAT,
            "corpus": identify(config.data),
            "tokenizer": source.identify() if source else {"wordpiece": get_max_vocabulary(config.model)},
            "classes": source.classes if source else None,
            "max_length": config.train.max_length,
        }
    )
    directory = Path(config.cache_dir) / f"tokens-{key}"
    return _open(directory, open_or_build(directory, lambda partial: build_token_cache(partial, config, source)))


def reopen_cache(config: Config, directory: Path) -> TokenCache:
    """Open the token cache at a path that an earlier `open_cache` has verified.

    Raises:
        UserError: If the manifest cannot be read.
    """
    return _open(directory, cast(TokenManifest, read_manifest(directory)))


def _open(directory: Path, manifest: TokenManifest) -> TokenCache:
    return TokenCache(
        directory=directory,
        fingerprint=compute_fingerprint(manifest["checksums"]),
        train=_open_split(directory, "train", manifest),
        validation=_open_split(directory, "validation", manifest),
        classes=manifest["classes"],
        vocabulary=manifest["vocabulary"],
        dropped=manifest["dropped"],
    )


def _open_split(directory: Path, name: str, manifest: TokenManifest) -> TokenizedSplit:
    arrays = {array: np.load(directory / f"{name}.{array}.npy", mmap_mode="r") for array in ARRAYS}
    return TokenizedSplit(**arrays, pad_id=manifest["pad_id"], max_length=manifest["max_length"])
