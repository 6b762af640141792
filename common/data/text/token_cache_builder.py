"""Builds the token cache: reads the corpus once to check it and once to tokenize it, and never holds it.

A trained tokenizer takes two more readings: its characters and its words are counted first.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from common.config.models import ModelSettings, TrainedTokenizerSettings
from common.config.schema import Config
from common.data.array_writer import ArrayWriter
from common.data.build_progress import show_progress
from common.data.text.text_corpus import LabelledTexts, read_corpus
from common.data.text.tokenizer import copy_tokenizer, load_tokenizer, save_trained, train_wordpiece
from common.data.tokenizer_source import TokenizerSource

log = logging.getLogger("lockstep")

CHUNK = 4096  # examples that are tokenized together
THREADS = 2  # one's results are copied while the other's examples are tokenized, by the library on all cores
WAITING = 2 * THREADS  # chunks that are read ahead

TokenizedChunk = tuple[np.ndarray, list[int], list[int]]


def build_token_cache(directory: Path, config: Config, source: TokenizerSource | None) -> dict[str, Any]:
    """Write the arrays and the tokenizer of a config's corpus. Returns the manifest's entries.

    See common.data.text.token_cache for the arrays and `source`. Raises UserError for a bad corpus.
    """
    corpus = read_corpus(config.data, source.classes if source else None)
    log.info("building the token cache of %d examples", len(corpus.train) + len(corpus.validation))
    (directory / "tokenizer").mkdir()
    if source is None:
        tokenizer = train_wordpiece(_Texts(corpus.train), get_max_vocabulary(config.model))
        save_trained(tokenizer, directory / "tokenizer")
    else:
        tokenizer = load_tokenizer(source.directory)
        copy_tokenizer(source.directory, directory / "tokenizer")
    tokenizer.no_padding()
    tokenizer.enable_truncation(config.train.max_length)
    for name, split in (("train", corpus.train), ("validation", corpus.validation)):
        write_token_arrays(tokenizer, split, directory, name)
    return {
        "classes": corpus.classes,
        "vocabulary": tokenizer.get_vocab_size(),
        "pad_id": tokenizer.token_to_id("[PAD]") or 0,
        "max_length": config.train.max_length,
        "dropped": corpus.train.dropped + corpus.validation.dropped,
    }


def get_max_vocabulary(model: ModelSettings) -> int:
    """Of the tokenizer that is trained for a model with random initial weights."""
    assert isinstance(model, TrainedTokenizerSettings)
    return model.max_vocabulary


class _Texts:
    """All texts of a split, read anew for each iteration."""

    def __init__(self, split: LabelledTexts) -> None:
        self._split = split

    def __iter__(self) -> Iterator[str]:
        examples = show_progress(self._split, "training the tokenizer", len(self._split))
        return chain.from_iterable(texts for texts, _ in examples)


def write_token_arrays(tokenizer: Tokenizer, split: LabelledTexts, directory: Path, name: str) -> None:
    """Write the four arrays of a split."""
    token = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    dtypes = {"tokens": token, "offsets": np.int64, "first_lengths": np.uint16, "labels": np.int32}
    with ExitStack() as stack:
        files = {
            array: stack.enter_context(ArrayWriter(directory / f"{name}.{array}.npy", dtype))
            for array, dtype in dtypes.items()
        }
        files["offsets"].append([0])
        for (tokens, lengths, first_lengths), labels in _tokenized(tokenizer, split, f"tokenizing data.{name}"):
            files["offsets"].append(files["tokens"].length + np.cumsum(lengths, dtype=np.int64))
            files["tokens"].append(tokens)
            files["first_lengths"].append(first_lengths)
            files["labels"].append(labels)


def _tokenized(
    tokenizer: Tokenizer, split: LabelledTexts, title: str
) -> Iterator[tuple[TokenizedChunk, tuple[int, ...]]]:
    """The tokens and the labels of the examples, in chunks, in order."""
    waiting: deque[tuple[Future[TokenizedChunk], tuple[int, ...]]] = deque()
    with ThreadPoolExecutor(THREADS, "tokenize") as pool:
        for chunk in _chunks(show_progress(split, title, len(split))):
            texts, labels = zip(*chunk, strict=True)
            waiting.append((pool.submit(_encode, tokenizer, texts), labels))
            if len(waiting) == WAITING:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)


def _first(waiting: "deque[tuple[Future[TokenizedChunk], tuple[int, ...]]]") -> tuple[TokenizedChunk, tuple[int, ...]]:
    future, labels = waiting.popleft()
    return future.result(), labels


def _chunks(examples: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(examples)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _encode(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> TokenizedChunk:
    """The tokens of all examples one after the other, the lengths, and the lengths of the first segments."""
    inputs = [tuple(each) if len(each) > 1 else each[0] for each in texts]
    encodings = tokenizer.encode_batch_fast(inputs)  # without the tokens' places in the text
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.uint32)
    return ids, [len(encoding) for encoding in encodings], [encoding.type_ids.count(0) for encoding in encodings]
