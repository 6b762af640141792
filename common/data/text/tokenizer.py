"""Tokenizers: a WordPiece tokenizer trained on the corpus, or the tokenizer of a checkpoint.

The `tokenizers` library is used directly, because the classes of transformers import torch.
"""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer, Tokenizer

from common.data.tokenizer_source import TOKENIZER_FILES
from common.errors import UserError, describe_error

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# Settings of tokenizer_config.json that decide the tokens, with the supported values of each, the default first
BERT_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert")
BERT_SETTINGS: dict[str, tuple[object, ...]] = {
    "tokenizer_class": (None, *(f"{name}Tokenizer{fast}" for name in BERT_CLASSES for fast in ("", "Fast"))),
    "do_lower_case": (True, False),
    "strip_accents": (None, True, False),
    "tokenize_chinese_chars": (True, False),
    "do_basic_tokenize": (True,),
    "never_split": (None, []),
    "additional_special_tokens": (None, []),
}

# A word of more than a thousand letters. Training on it would take a time quadratic in its length, for nothing: the
# tokenizer makes any word of over 100 letters one [UNK]. Punctuation and Chinese or Japanese characters end a word.
OVERLONG_WORD = re.compile(r"[^\s!-/:-@\[-`{-~\u3000-\u9fff\uff00-\uffef]{1001,}")
CHUNK = 4096  # texts whose characters are counted together


def train_wordpiece(texts: Iterable[str], max_vocabulary: int) -> Tokenizer:
    """Train a lower-casing BERT WordPiece tokenizer. The same texts give the same tokenizer.

    Args:
        texts: Texts of the corpus, which are iterated over twice.
        max_vocabulary: Largest number of tokens.
    """
    trainer = BertWordPieceTokenizer(lowercase=True)
    normalize = BertWordPieceTokenizer(lowercase=True).normalize  # trainer.normalize would block while it trains
    counts = _count_characters(normalize, texts)
    # Each character needs two tokens: one to begin a word ("a"), and one to continue it ("##a").
    max_characters = (max_vocabulary - len(SPECIAL_TOKENS)) // 2
    frequent = sorted(sorted(counts), key=counts.__getitem__, reverse=True)[:max_characters]
    if len(frequent) < len(counts):
        rare = str.maketrans(dict.fromkeys(counts.keys() - set(frequent), " "))
        texts = (normalize(text).translate(rare) for text in texts)
    texts = (OVERLONG_WORD.sub(" ", text) for text in texts)
    # The library numbers the tokens of continuing characters in hash order, which changes from run to run, and breaks
    # ties by number. Passed as special tokens they are numbered first and in order, so the same texts give the same
    # vocabulary.
    continuing = [f"##{character}" for character in sorted(frequent)]
    trainer.train_from_iterator(
        texts,
        vocab_size=max_vocabulary,
        min_frequency=1,
        limit_alphabet=max_vocabulary,
        special_tokens=[*SPECIAL_TOKENS.values(), *continuing],
        show_progress=False,
    )
    # A new tokenizer of this vocabulary adds the template [CLS] a [SEP] b [SEP], and has only the real special tokens.
    return BertWordPieceTokenizer(vocab=trainer.get_vocab(), lowercase=True)._tokenizer


def _count_characters(normalize: Callable[[str], str], texts: Iterable[str]) -> Counter[str]:
    """Count each character of the normalized texts.

    To be fast, count the characters before normalization, and normalize each distinct character once. The counts are
    the same, because the normal form of a character does not depend on its neighbours.
    """
    code_counts = np.zeros(sys.maxunicode + 1, np.int64)
    iterator = iter(texts)
    while chunk := list(islice(iterator, CHUNK)):
        chunk_counts = np.bincount(np.frombuffer("".join(chunk).encode("utf-32-le"), np.uint32))
        code_counts[: len(chunk_counts)] += chunk_counts
    counts: Counter[str] = Counter()
    for code in np.flatnonzero(code_counts):
        for character in normalize(chr(code)):
            if not character.isspace():
                counts[character] += int(code_counts[code])
    return counts


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint in Hugging Face format: tokenizer.json, or vocab.txt of older checkpoints.

    Raises:
        UserError: There is no tokenizer, or it is damaged.
    """
    if not (directory / "tokenizer.json").exists() and not (directory / "vocab.txt").exists():
        raise UserError(f"model.checkpoint: {directory} has neither tokenizer.json nor vocab.txt; add its tokenizer")
    try:
        return _read_tokenizer(directory)
    except UserError:
        raise
    except Exception as error:  # the library raises Exception itself
        reason = describe_error(error)
        raise UserError(
            f"model.checkpoint: the tokenizer in {directory} cannot be read ({reason}); download it again"
        ) from error


def _read_tokenizer(directory: Path) -> Tokenizer:
    if (directory / "tokenizer.json").exists():
        return Tokenizer.from_file(str(directory / "tokenizer.json"))
    return _build_bert_tokenizer(directory)


def _build_bert_tokenizer(directory: Path) -> Tokenizer:
    """Build the tokenizer of vocab.txt with the settings of tokenizer_config.json. Raise UserError if one is unknown.

    Lower case strips accents too, unless strip_accents says otherwise, as in transformers.
    """
    path = directory / "tokenizer_config.json"
    settings, names = (
        json.loads(file.read_text()) if file.exists() else {} for file in (path, directory / "special_tokens_map.json")
    )
    for key, supported in BERT_SETTINGS.items():
        if settings.get(key, supported[0]) not in supported:
            raise UserError(
                f"model.checkpoint: {path} has {key}={json.dumps(settings[key])}, which is not supported beside "
                "vocab.txt; add the tokenizer.json that transformers saves"
            )
    names |= settings
    tokens = {key: _read_token(names[key]) for key in SPECIAL_TOKENS if names.get(key) is not None}
    return BertWordPieceTokenizer(
        str(directory / "vocab.txt"),
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        **tokens,
    )._tokenizer


def _read_token(value: str | dict[str, str]) -> str:
    """Return the text of a special token, which is an object in some versions of transformers."""
    return value["content"] if isinstance(value, dict) else value


def save_trained(tokenizer: Tokenizer, directory: Path) -> None:
    """Write a trained tokenizer in the files that transformers and KerasHub load."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **SPECIAL_TOKENS}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    vocabulary = tokenizer.get_vocab()
    (directory / "vocab.txt").write_text(
        "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))
    )


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy the files of a tokenizer. If it has only vocab.txt, write its tokenizer.json too."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)
    if not (directory / "tokenizer.json").exists():
        load_tokenizer(source).save(str(directory / "tokenizer.json"))
