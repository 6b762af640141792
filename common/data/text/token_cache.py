"""The token cache: a corpus as token ids on disk, built once and opened memory-mapped by every process of a run.

A split of n examples with t tokens in all is four arrays: `tokens` uint16 or uint32 [t], `offsets` int64 [n + 1]
(example i is tokens[offsets[i]:offsets[i + 1]]), `first_lengths` uint16 [n] (tokens of the first segment), `labels`
int32 [n].
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.config.schema import Config
from common.data.atomic_directory import compute_fingerprint, open_or_build, read_manifest
from common.data.batches import Arrays
from common.data.cache import Cache
from common.data.identity import identify
from common.data.ragged import build_mask, compute_padded_width, locate_values
from common.data.text.token_cache_builder import build_token_cache, get_max_vocabulary
from common.data.tokenizer_source import TokenizerSource

FORMAT = 1
ARRAYS = ("tokens", "offsets", "first_lengths", "labels")


@dataclass(frozen=True)
class TokenizedSplit:
    """Memory-mapped arrays of one split."""

    tokens: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    labels: np.ndarray
    pad_id: int
    max_length: int

    def __len__(self) -> int:
        return len(self.labels)

    def width(self, ids: np.ndarray) -> int:
        """The length that a batch of these examples is padded to."""
        return min(compute_padded_width(self.lengths(ids)), self.max_length)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each example."""
        return self.offsets[ids + 1] - self.offsets[ids]

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """All count alike."""
        return np.ones(len(ids))

    def loss_counts(self, ids: np.ndarray) -> np.ndarray:
        """A text has one label."""
        return np.ones(len(ids))

    def gather(self, ids: np.ndarray, batch: np.ndarray) -> Arrays:
        """`input_ids`, `token_type_ids`, `attention_mask` int32 [n, width of the batch] and `labels` int32 [n]."""
        width = self.width(batch)
        tokens, types, positions, rows = self._flat(ids)
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
        """The t tokens of the n examples one after the other: `input_ids`, `token_type_ids`, `position_ids` int32 [t].

        Attention alone needs them padded to [n * width]: `places` int32 [t] is where each token goes, `attention_mask`
        int32 [n, width] which places are real. `first_tokens` int32 [n] are the tokens that the examples begin with.
        Also `labels` int32 [n].
        """
        lengths = self.lengths(ids)
        width = int(lengths.max())
        tokens, types, positions, rows = self._flat(ids)
        return {
            "input_ids": tokens,
            "token_type_ids": types,
            "position_ids": positions,
            "places": (rows * width + positions).astype(np.int32),
            "attention_mask": build_mask(lengths, width),
            "first_tokens": (np.cumsum(lengths) - lengths).astype(np.int32),
            "labels": self.labels[ids],
        }

    def _flat(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of the examples' tokens, one after the other: ids, types, positions, all int32 [t], and rows int64 [t]."""
        rows, positions = locate_values(self.lengths(ids))
        tokens = self.tokens[self.offsets[ids][rows] + positions].astype(np.int32)
        types = (positions >= self.first_lengths[ids][rows]).astype(np.int32)
        return tokens, types, positions.astype(np.int32), rows

    def count_tokens(self, arrays: Arrays) -> int:
        """Those that are computed have ids."""
        return arrays["input_ids"].size


@dataclass(frozen=True)
class TokenCache(Cache):
    """An opened token cache."""

    train: TokenizedSplit
    validation: TokenizedSplit
    vocabulary: int
    dropped: int  # rows without a gold label

    @property
    def tokenizer_directory(self) -> Path:
        return self.directory / "tokenizer"

    def __str__(self) -> str:
        dropped = f", {self.dropped} rows without a gold label dropped" if self.dropped else ""
        return f"{super().__str__()}{dropped}"


def open_cache(config: Config, source: TokenizerSource | None) -> TokenCache:
    """Open the token cache of a config, built first where it is missing or damaged. Raises UserError for a bad corpus.

    source: the pretrained checkpoint whose tokenizer and classes to use, or None for a model with random initial
    weights.
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
    """Open a token cache that `open_cache` has verified. Raises UserError where its manifest cannot be read."""
    return _open(directory, read_manifest(directory))


def _open(directory: Path, manifest: dict[str, Any]) -> TokenCache:
    return TokenCache(
        directory=directory,
        fingerprint=compute_fingerprint(manifest["checksums"]),
        train=_open_split(directory, "train", manifest),
        validation=_open_split(directory, "validation", manifest),
        classes=manifest["classes"],
        vocabulary=manifest["vocabulary"],
        dropped=manifest["dropped"],
    )


def _open_split(directory: Path, name: str, manifest: dict[str, Any]) -> TokenizedSplit:
    arrays = {array: np.load(directory / f"{name}.{array}.npy", mmap_mode="r") for array in ARRAYS}
    return TokenizedSplit(**arrays, pad_id=manifest["pad_id"], max_length=manifest["max_length"])
