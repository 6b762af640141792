"""Builder of the token cache. It reads the corpus twice, to check it and to tokenize it, and never holds all of it.

Training a tokenizer reads the training split two more times: for its characters and for its words.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Tokenizer

from common.config.models import ModelSettings, TrainedTokenizerSettings
from common.config.schema import Config
from common.data.array_writer import ArrayWriter
from common.data.atomic_directory import Manifest
from common.data.build_progress import show_progress
from common.data.text.text_corpus import LabelledTexts, read_corpus
from common.data.text.tokenizer import copy_tokenizer, load_tokenizer, save_trained, train_wordpiece
from common.data.tokenizer_source import TokenizerSource

log = logging.getLogger("lockstep")

CHUNK = 4096  # examples that are tokenized together
THREADS = 2  # one thread copies results while the other tokenizes a chunk, on all cores
MAX_PENDING = 2 * THREADS  # chunks in flight; no other chunk is read before the oldest is written

Item = TypeVar("Item")


class TokenManifest(Manifest):
    """Manifest of a token cache."""

    classes: list[str]
    vocabulary: int  # number of embeddings that the tokens need
    pad_id: int
    max_length: int  # `train.max_length`, to which longer examples are cut
    dropped: int  # rows without a gold label


class TokenizedChunk(NamedTuple):
    """Tokens of some examples."""

    tokens: np.ndarray  # the tokens of all examples one after the other, uint32
    lengths: list[int]  # tokens of each example
    first_lengths: list[int]  # tokens of each example's first segment


def build_token_cache(directory: Path, config: Config, source: TokenizerSource | None) -> TokenManifest:
    """Write the arrays and the tokenizer of a config's corpus.

    Args:
        directory: Empty directory of the cache.
        config: The config of the run.
        source: Pretrained checkpoint whose tokenizer and classes are used; None to train a tokenizer.

    Raises:
        UserError: If the corpus is wrong.
    """
    corpus = read_corpus(config.data, source.classes if source else None)
    log.info("building the token cache of %d examples", len(corpus.train) + len(corpus.validation))
    (directory / "tokenizer").mkdir()
    if source is None:
        tokenizer = train_wordpiece(_AllTexts(corpus.train), get_max_vocabulary(config.model))
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
        "vocabulary": count_embeddings(tokenizer),
        # 0 if a checkpoint has another name for the token; the attention mask hides padding.
        "pad_id": tokenizer.token_to_id("[PAD]") or 0,
        "max_length": config.train.max_length,
        "dropped": corpus.train.dropped + corpus.validation.dropped,
    }


def get_max_vocabulary(model: ModelSettings) -> int:
    """Return the largest vocabulary of a tokenizer that is trained for a model with random initial weights."""
    assert isinstance(model, TrainedTokenizerSettings)
    return model.max_vocabulary


def count_embeddings(tokenizer: Tokenizer) -> int:
    """Return the number of embeddings that the tokens need: the largest id + 1. A vocabulary may skip ids."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


class _AllTexts:
    """All texts of a split, without the labels. Each iteration reads them again, for the two passes of the training."""

    def __init__(self, split: LabelledTexts) -> None:
        self._split = split

    def __iter__(self) -> Iterator[str]:
        examples = show_progress(self._split, "training the tokenizer", len(self._split))
        return chain.from_iterable(texts for texts, _ in examples)


def write_token_arrays(tokenizer: Tokenizer, split: LabelledTexts, directory: Path, name: str) -> None:
    """Write the arrays of a split, which common.data.text.token_cache describes."""
    token_dtype = np.uint16 if count_embeddings(tokenizer) <= 1 << 16 else np.uint32
    dtypes = {"tokens": token_dtype, "offsets": np.int64, "first_lengths": np.uint16, "labels": np.int32}
    with ExitStack() as stack:
        writers = {
            array: stack.enter_context(ArrayWriter(directory / f"{name}.{array}.npy", dtype))
            for array, dtype in dtypes.items()
        }
        writers["offsets"].append([0])
        for chunk, labels in _tokenize_split(tokenizer, split, f"tokenizing data.{name}"):
            writers["offsets"].append(writers["tokens"].length + np.cumsum(chunk.lengths, dtype=np.int64))
            writers["tokens"].append(chunk.tokens)
            writers["first_lengths"].append(chunk.first_lengths)
            writers["labels"].append(labels)


def _tokenize_split(
    tokenizer: Tokenizer, split: LabelledTexts, title: str
) -> Iterator[tuple[TokenizedChunk, tuple[int, ...]]]:
    """Yield the tokens and the labels of the examples in chunks, in order."""
    pending: deque[tuple[Future[TokenizedChunk], tuple[int, ...]]] = deque()
    with ThreadPoolExecutor(THREADS, "tokenize") as pool:
        for examples in _divide_into_chunks(show_progress(split, title, len(split))):
            texts, labels = zip(*examples, strict=True)
            pending.append((pool.submit(_tokenize_texts, tokenizer, texts), labels))
            if len(pending) == MAX_PENDING:
                future, labels = pending.popleft()
                yield future.result(), labels
        for future, labels in pending:
            yield future.result(), labels


def _divide_into_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _tokenize_texts(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> TokenizedChunk:
    inputs = [tuple(segments) if len(segments) > 1 else segments[0] for segments in texts]
    encodings = tokenizer.encode_batch_fast(inputs)  # "fast" leaves out the positions of tokens in the text
    return TokenizedChunk(
        np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.uint32),
        [len(encoding) for encoding in encodings],
        [encoding.type_ids.count(0) for encoding in encodings],  # type 0 is the first segment
    )
