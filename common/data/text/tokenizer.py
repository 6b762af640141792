"""Tokenizers: a WordPiece trained on the corpus for models with random initial weights, else the checkpoint's own.

The `tokenizers` library is used directly: transformers' classes import torch.
"""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer, Tokenizer

from common.data.tokenizer_source import TOKENIZER_FILES
from common.errors import UserError

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


CHUNK = 4096  # texts whose characters are counted together


def train_wordpiece(texts: Iterable[str], max_vocabulary: int) -> Tokenizer:
    """A lower-casing BERT WordPiece tokenizer of at most `max_vocabulary` tokens; the same texts give the same one.

    The texts are iterated over twice.
    """
    trainer = BertWordPieceTokenizer(lowercase=True)
    normalize = BertWordPieceTokenizer(lowercase=True).normalize  # the trainer's own would wait for its training
    counts = _count_characters(normalize, texts)
    room = (max_vocabulary - len(SPECIAL_TOKENS)) // 2  # a character is two tokens: alone and within a word
    kept = sorted(sorted(counts), key=counts.__getitem__, reverse=True)[:room]
    if len(kept) < len(counts):
        rare = str.maketrans(dict.fromkeys(counts.keys() - set(kept), " "))
        texts = (normalize(text).translate(rare) for text in texts)
    # The library numbers the continuing characters in hash order and breaks ties by number. With them named first, in
    # order, the same texts give the same vocabulary.
    characters = [f"##{character}" for character in sorted(kept)]
    trainer.train_from_iterator(
        texts,
        vocab_size=max_vocabulary,
        min_frequency=1,
        limit_alphabet=max_vocabulary,
        special_tokens=[*SPECIAL_TOKENS.values(), *characters],
        show_progress=False,
    )
    # A second wrapper adds the template [CLS] a [SEP] b [SEP]; to it the characters are not special tokens.
    return BertWordPieceTokenizer(vocab=trainer.get_vocab(), lowercase=True)._tokenizer


def _count_characters(normalize: Callable[[str], str], texts: Iterable[str]) -> Counter[str]:
    """How often each character is in the normalized texts. Each is normalized once, as that needs no others."""
    found = np.zeros(sys.maxunicode + 1, np.int64)
    iterator = iter(texts)
    while chunk := list(islice(iterator, CHUNK)):
        codes = np.bincount(np.frombuffer("".join(chunk).encode("utf-32-le"), np.uint32))
        found[: len(codes)] += codes
    counts: Counter[str] = Counter()
    for code in np.flatnonzero(found):
        for character in normalize(chr(code)):
            if not character.isspace():
                counts[character] += int(found[code])
    return counts


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint in Hugging Face format: tokenizer.json, or vocab.txt of older ones."""
    if (directory / "tokenizer.json").exists():
        return Tokenizer.from_file(str(directory / "tokenizer.json"))
    if not (directory / "vocab.txt").exists():
        raise UserError(f"model.checkpoint: {directory} has neither tokenizer.json nor vocab.txt; add its tokenizer")
    settings = directory / "tokenizer_config.json"
    lowercase = json.loads(settings.read_text()).get("do_lower_case", True) if settings.exists() else True
    return BertWordPieceTokenizer(str(directory / "vocab.txt"), lowercase=lowercase)._tokenizer


def save_trained(tokenizer: Tokenizer, directory: Path) -> None:
    """Write a trained tokenizer so that transformers and KerasHub load it."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **SPECIAL_TOKENS}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    vocabulary = tokenizer.get_vocab()
    (directory / "vocab.txt").write_text(
        "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))
    )


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy a tokenizer's files; one that has only vocab.txt gets its tokenizer.json."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)
    if not (directory / "tokenizer.json").exists():
        load_tokenizer(source).save(str(directory / "tokenizer.json"))
