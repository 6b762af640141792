"""The cache of plain text for language models: tokens that are cut into blocks, opened as named arrays.

A split is one array, `tokens` int32 [t], of the whole text. An example is a block of L = `train.max_length` tokens:
block i is tokens[i * L : (i + 1) * L]. The label of a token is the next token of the text.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from common.config.data import LinesSettings
from common.config.schema import Config
from common.config.tasks import TaskSettings
from common.data.array_writer import ArrayWriter
from common.data.arrays.array_cache import ArrayCache
from common.data.arrays.array_files import find_split, warn_of_same_file
from common.data.arrays.plain_text_tokens import BYTES, find_tokenizer, open_tokenizer
from common.data.atomic_directory import Manifest, compute_fingerprint, open_or_build, read_manifest
from common.data.build_progress import show_progress
from common.data.identity import Identity, collect_source_keys, identify_file
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.errors import UserError

if TYPE_CHECKING:
    from common.data.tokenizer_source import TokenizerSource

log = logging.getLogger("lockstep")

FORMAT = 1  # raise it whenever the files change, so that caches of the old format are built again


class LineManifest(Manifest):
    """Manifest of a cache of plain text."""

    max_length: int  # tokens of a block
    largest: int  # largest token


def open_cache(config: Config, source: "TokenizerSource | None") -> ArrayCache:
    """Open the cache of a config whose data is plain text. Build the cache first if it is missing or damaged.

    Args:
        config: The config of the run.
        source: Not used, because `data.tokenizer` names the tokenizer.

    Raises:
        UserError: If a file is missing or wrong, or too short for one block.
    """
    data, length = config.data, config.train.max_length
    assert isinstance(data, LinesSettings)
    key = compute_fingerprint({"format": FORMAT, "corpus": identify(data), "max_length": length})
    directory = Path(config.cache_dir) / f"lines-{key}"
    return _open(config, directory, open_or_build(directory, lambda partial: _build(partial, data, length)))


def reopen_cache(config: Config, directory: Path) -> ArrayCache:
    """Open the cache at a path that an earlier `open_cache` has verified.

    Raises:
        UserError: If the manifest cannot be read.
    """
    return _open(config, directory, cast(LineManifest, read_manifest(directory)))


def identify(data: LinesSettings) -> Identity:
    """Return the config keys and the identities of the files and the tokenizer."""
    files = {key: identify_file(path) for key, path in _find_splits(data).items()}
    tokenizer = BYTES if data.tokenizer == BYTES else identify_file(find_tokenizer(data.tokenizer))
    return {**collect_source_keys(data), **files, "tokenizer": tokenizer}


def _find_splits(data: LinesSettings) -> dict[str, Path]:
    paths = {key: find_split(f"data.{key}", getattr(data, key)) for key in ("train", "validation")}
    for key, path in paths.items():
        if not path.is_file():
            raise UserError(f"data.{key}: not a file: {path}; set it to one file of text")
    return paths


def _open(config: Config, directory: Path, manifest: LineManifest) -> ArrayCache:
    length = manifest["max_length"]
    return ArrayCache(
        directory=directory,
        fingerprint=compute_fingerprint({"checksums": manifest["checksums"], "max_length": length}),
        train=_open_split(directory, "train", length, config.task),
        validation=_open_split(directory, "validation", length, config.task),
        classes=[],
        limits={"input_ids": manifest["largest"]},
    )


def _open_split(directory: Path, name: str, length: int, task: TaskSettings) -> ArraySplit:
    tokens = np.load(directory / f"{name}.tokens.npy", mmap_mode="r")
    end = _count_blocks(len(tokens), length) * length
    inputs, labels = tokens[:end].reshape(-1, length), tokens[1 : end + 1].reshape(-1, length)
    return ArraySplit({"input_ids": Column(inputs)}, Column(labels), task=task)


def _count_blocks(tokens: int, length: int) -> int:
    """Return the number of whole blocks in a text of `tokens` tokens. The token after a block is only a label."""
    return max(0, tokens - 1) // length


def _build(directory: Path, data: LinesSettings, length: int) -> LineManifest:
    paths = _find_splits(data)
    warn_of_same_file(paths)
    read_tokens = open_tokenizer(data.tokenizer)
    largest = 0
    for key, path in paths.items():
        log.info("building the token cache of %s", path)
        with ArrayWriter(directory / f"{key}.tokens.npy", np.int32) as writer:
            for tokens in show_progress(read_tokens(path), f"tokenizing {path.name}"):
                writer.append(tokens)
                largest = max(largest, int(tokens.max(initial=0)))
        blocks = _count_blocks(writer.length, length)
        if not blocks:
            raise UserError(
                f"{path}: {writer.length} tokens, too few for a block of {length} and the token after it; use a "
                "longer text, or lower train.max_length"
            )
        remaining = writer.length - blocks * length - 1
        log.info("%s: %d tokens in %d blocks of %d; %d left over", path, writer.length, blocks, length, remaining)
    return {"max_length": length, "largest": largest}
