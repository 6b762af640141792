"""The built-in sentence pairs: reproducible, balanced, held out, correct, and not classified by their words alone."""

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from common.config.data import BuiltinNliSettings
from common.data.identity import identify
from common.data.text.builtin_nli import CLASSES, LabelledPair, generate
from common.data.text.nli_grammar import PHENOMENA
from common.data.text.nli_lexicon import DAYS, NAMES, StableRandom
from common.errors import UserError
from tests.unit.common.data.text.text_samples import read_corpus

ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
Splits = tuple[list[LabelledPair], list[LabelledPair]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return generate(seed=0, train_examples=24_000, validation_examples=3_000)


def test_a_seed_gives_the_same_pairs_on_every_machine() -> None:
    pairs = generate(7, 300, 60)
    assert pairs == generate(7, 300, 60)
    assert pairs != generate(8, 300, 60)
    # On a deliberate change of the text: raise VERSION, and put the new digest here.
    assert hashlib.sha256(repr(pairs).encode()).hexdigest()[:16] == "9ac8166f59863154"


@pytest.mark.slow
def test_counts_distinct_pairs_and_balanced_classes(splits: Splits) -> None:
    for pairs, examples in zip(splits, (24_000, 3_000), strict=True):
        assert len(pairs) == len({pair[:2] for pair in pairs}) == examples
        assert set(Counter(label for *_, label in pairs).values()) == {examples // 3}
    for examples in (1, 2, 100):
        counts = Counter(label for *_, label in generate(0, examples, 1)[0])
        assert max(counts.values()) - min(counts[label] for label in range(3)) <= 1


@pytest.mark.slow
def test_no_validation_sentence_is_in_train(splits: Splits) -> None:
    train, validation = ({sentence for pair in pairs for sentence in pair[:2]} for pairs in splits)
    assert len(validation) > 1_000
    assert not train & validation


@pytest.mark.slow
def test_sentences_are_well_formed(splits: Splits) -> None:
    for pair in splits[0] + splits[1]:
        assert pair[0] != pair[1]
        for sentence in pair[:2]:
            assert re.fullmatch(r"[A-Z][A-Za-z' ]*[a-z]\.", sentence), sentence
            assert "  " not in sentence and 3 <= len(sentence.split()) <= 14, sentence
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", sentence), sentence
            assert all(word in NAMES or word in DAYS for word in re.findall(r"(?<= )[A-Z]\w*", sentence)), sentence


@pytest.mark.parametrize("name", PHENOMENA)
def test_every_hypothesis_form_occurs_in_every_class(name: str) -> None:
    assert len(PHENOMENA[name].premises) >= 4
    for classes in PHENOMENA[name].premises.values():
        assert len(classes) == len(CLASSES) and all(classes)
    assert len({PHENOMENA[name].draw_pair(StableRandom(seed), seed % 3) for seed in range(60)}) > 50


KNOWN = {  # phenomenon: premise form, hypothesis form, class
    "hypernyms": [
        ("{a} {saw} {an_x}.", "{a} {saw} {a_kind}.", ENTAILMENT),
        ("{a} {saw} {a_kind}.", "{a} {saw} {an_x}.", NEUTRAL),
        ("{a} {saw} {a_y}.", "{a} {saw} {an_x}.", NEUTRAL),
        ("{a} did not {see} any {x}s.", "{a} did not {see} any {kind}s.", NEUTRAL),
        ("{a} did not {see} any {kind}s.", "{a} did not {see} any {x}s.", ENTAILMENT),
        ("{a} did not {see} any {kind}s.", "{a} {saw} {an_x}.", CONTRADICTION),
    ],
    "numerals": [
        ("{a} {saw} exactly four {x}s.", "{a} {saw} at least three {x}s.", ENTAILMENT),
        ("{a} {saw} more than four {x}s.", "{a} {saw} at least five {x}s.", ENTAILMENT),
        ("{a} {saw} at least three {x}s.", "{a} {saw} more than three {x}s.", NEUTRAL),
        ("{a} {saw} fewer than three {x}s.", "{a} {saw} at least three {x}s.", CONTRADICTION),
        ("{a} {saw} exactly three {x}s.", "{a} {saw} more than three {x}s.", CONTRADICTION),
    ],
    "quantifiers": [
        ("All of {a}'s {kind}s are {there}.", "Some of {a}'s {x}s are {there}.", ENTAILMENT),
        ("Some of {a}'s {x}s are {there}.", "All of {a}'s {x}s are {there}.", NEUTRAL),
        ("Some of {a}'s {kind}s are {there}.", "Some of {a}'s {x}s are {there}.", NEUTRAL),
        ("None of {a}'s {kind}s are {there}.", "Some of {a}'s {x}s are {there}.", CONTRADICTION),
    ],
    "voice": [
        ("{a} {helped} {b} on {day}.", "{b} was {helped} by {a} on {day}.", ENTAILMENT),
        ("{a} {helped} {b} on {day}.", "{a} was {helped} by {b} on {day}.", NEUTRAL),
        ("{a} {helped} {b} on {day}.", "{b} was not {helped} by {a} on {day}.", CONTRADICTION),
    ],
    "connectives": [
        ("Both {a} and {b} are {there}.", "{a} is {there}.", ENTAILMENT),
        ("At least one of {a} and {b} is {there}.", "{a} is {there}.", NEUTRAL),
        ("Neither {a} nor {b} is {there}.", "{b} is {there}.", CONTRADICTION),
    ],
}


@pytest.mark.parametrize(
    ("name", "premise", "hypothesis", "label"), [(name, *k) for name in KNOWN for k in KNOWN[name]]
)
def test_known_inferences(name: str, premise: str, hypothesis: str, label: int) -> None:
    assert [premise in forms for forms in PHENOMENA[name].premises[hypothesis]] == [i == label for i in range(3)]


def test_what_usage_and_logic_judge_differently_is_left_out() -> None:
    some, not_all = "Some of {a}'s {x}s are {there}.", "Not all of {a}'s {x}s are {there}."
    table = PHENOMENA["quantifiers"].premises
    assert not any(not_all in forms for forms in table[some])
    assert not any(some in forms for forms in table[not_all])


@pytest.mark.slow
@pytest.mark.parametrize("key", ["train_examples", "validation_examples"])
@pytest.mark.parametrize("examples", [1_000_000, 0, -1])
def test_a_count_that_the_grammar_cannot_give(key: str, examples: int) -> None:
    with pytest.raises(ValueError, match=rf"data\.{key}: .*not {examples}$") as error:
        generate(0, **{"train_examples": 3, "validation_examples": 3} | {key: examples})
    assert "\n" not in str(error.value)


def builtin(train_examples: int = 30) -> BuiltinNliSettings:
    return BuiltinNliSettings("builtin_nli", False, seed=3, train_examples=train_examples, validation_examples=6)


def test_corpus() -> None:
    corpus = read_corpus(builtin())
    assert (len(corpus.train.premises), len(corpus.validation.labels), corpus.train.dropped) == (30, 6, 0)
    reversed_classes = corpus.classes[::-1]
    assert read_corpus(builtin(), reversed_classes).train.labels == [2 - label for label in corpus.train.labels]
    with pytest.raises(UserError, match=r"^data.train_examples"):
        read_corpus(builtin(train_examples=0))


def test_identity() -> None:
    assert {"version", "seed", "train_examples", "validation_examples"} <= identify(builtin()).keys()


def count_words(bags: list[list[tuple[int, str]]], vocabulary: dict[tuple[int, str], int]) -> csr_array:
    """Count the words of every bag, float32 [bags, words + 1]. The last column is 1."""
    columns = [[*(vocabulary[word] for word in bag if word in vocabulary), len(vocabulary)] for bag in bags]
    rows = np.repeat(np.arange(len(bags)), [len(words) for words in columns])
    ones = np.ones(len(rows), np.float32)
    return csr_array((ones, (rows, np.concatenate(columns))), shape=(len(bags), len(vocabulary) + 1))


def bag_of_words_accuracy(splits: Splits, sides: tuple[int, ...]) -> float:
    """Validation accuracy of a softmax regression on word counts, a feature per word and side."""
    vocabulary: dict[tuple[int, str], int] = {}
    bags = [
        [[(side, word) for side in sides for word in str(pair[side]).split()] for pair in pairs] for pairs in splits
    ]
    for bag in bags[0]:
        for word in bag:
            vocabulary.setdefault(word, len(vocabulary))
    x, x_validation = (count_words(split, vocabulary) for split in bags)
    y, y_validation = (np.array([label for *_, label in pairs]) for pairs in splits)
    weights, velocity = np.zeros((2, len(vocabulary) + 1, len(CLASSES)), np.float32)
    for _ in range(300):
        scores = np.exp(x @ weights)
        gradient = x.T @ (scores / scores.sum(1, keepdims=True) - np.eye(3, dtype=np.float32)[y]) / len(y)
        velocity = 0.9 * velocity - 0.2 * gradient
        weights = weights + velocity
    assert (np.argmax(x @ weights, 1) == y).mean() > 1 / 3
    return float((np.argmax(x_validation @ weights, 1) == y_validation).mean())


@pytest.mark.slow
def test_a_bag_of_words_does_not_give_the_class(splits: Splits) -> None:
    assert bag_of_words_accuracy(splits, sides=(0, 1)) < 0.62


@pytest.mark.slow
def test_the_hypothesis_alone_does_not_give_the_class(splits: Splits) -> None:
    assert bag_of_words_accuracy(splits, sides=(1,)) < 0.40


@pytest.mark.slow
@pytest.mark.bench
def test_two_layers_learn_it_from_scratch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_impl.train", "experiment=learn", "strategy=ddp", "run_dir=run"]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    print(f"accuracy {summary['accuracy']:.3f} after {summary['steps']} steps")
    assert summary["accuracy"] >= 0.80
