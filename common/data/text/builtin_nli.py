"""Built-in data for natural language inference: does a premise entail or contradict a hypothesis?

The sentence pairs are generated in memory from the grammar of common.data.text.nli_grammar.
"""

import hashlib

from common.config.data import BuiltinNliSettings
from common.data.identity import Identity, collect_source_keys
from common.data.text.nli_grammar import PHENOMENA
from common.data.text.nli_lexicon import StableRandom
from common.data.text.text_rows import TextRows, TextSource
from common.errors import UserError

CLASSES = ["entailment", "neutral", "contradiction"]
VERSION = 1  # raise it whenever the generated text changes, so that caches of the old text are not used
MAX_MISSES = 20_000  # draws without a new pair after which the grammar counts as exhausted

LabelledPair = tuple[str, str, int]  # premise, hypothesis, index of the class


def read(data: BuiltinNliSettings) -> TextSource:
    """Generate both splits.

    Raises:
        UserError: If the grammar has fewer examples than the config asks for.
    """
    train, validation = generate(data.seed, data.train_examples, data.validation_examples)
    return TextSource(
        _to_rows("data.train_examples", train), _to_rows("data.validation_examples", validation), list(CLASSES)
    )


def identify(data: BuiltinNliSettings) -> Identity:
    """Return the config keys and the version of the generated text."""
    return {**collect_source_keys(data), "version": VERSION}


def generate(seed: int, train_examples: int, validation_examples: int) -> tuple[list[LabelledPair], list[LabelledPair]]:
    """Generate the training and the validation split. No sentence occurs in both.

    Raises:
        UserError: If the grammar has fewer examples than asked for.
    """
    generator = StableRandom(seed)
    return (
        _generate_split(generator, train_examples, held_out=False, key="train_examples"),
        _generate_split(generator, validation_examples, held_out=True, key="validation_examples"),
    )


def _to_rows(key: str, pairs: list[LabelledPair]) -> TextRows:
    return TextRows.from_memory(key, "example ", [(label, premise, hypothesis) for premise, hypothesis, label in pairs])


def _generate_split(generator: StableRandom, examples: int, held_out: bool, key: str) -> list[LabelledPair]:
    """Generate distinct pairs in a random order, with equal numbers of every class and phenomenon."""
    if examples < 1:
        raise UserError(f"data.{key}: must be at least 1, not {examples}")
    phenomena = list(PHENOMENA.values())
    pairs: dict[tuple[str, str], int] = {}
    misses = 0
    while len(pairs) < examples:
        label = len(pairs) % len(CLASSES)
        phenomenon = phenomena[len(pairs) // len(CLASSES) % len(phenomena)]
        pair = phenomenon.draw_pair(generator, label)
        if pair not in pairs and all(_is_held_out(sentence) == held_out for sentence in pair):
            pairs[pair] = label
            misses = 0
        elif (misses := misses + 1) == MAX_MISSES:
            raise UserError(f"data.{key}: the built-in grammar gives about {len(pairs)} pairs, not {examples}")
    return generator.draw_some(((*pair, label) for pair, label in pairs.items()), examples)


def _is_held_out(sentence: str) -> bool:
    """Check whether a sentence is for validation only. One in four is. The seed and the pair have no influence."""
    return hashlib.sha256(sentence.encode()).digest()[0] < 64
