"""Sentence-pair inference data generated in memory from a grammar and a lexicon.

No label is written by hand. A phenomenon is a small set of possible worlds and a list of sentence forms, each with the
worlds it is true in. A hypothesis is entailed when it is true wherever the premise is, contradicted when it is true
nowhere the premise is, and neutral otherwise. So the class depends on the pair, and hardly on the words in it.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from common.config.data import BuiltinNliSettings
from common.data.identity import collect_source_keys
from common.data.text.text_rows import TextRows, TextSource
from common.errors import UserError

CLASSES = ["entailment", "neutral", "contradiction"]
VERSION = 1  # part of the cache key: raise it whenever the text produced changes
PATIENCE = 20_000  # draws without a new pair after which the grammar counts as exhausted

Triple = tuple[str, str, int]
Slots = dict[str, str]
World = tuple[int, ...]
Forms = Mapping[str, Callable[..., bool]]  # sentence with slots -> is it true in this world?


def read(data: BuiltinNliSettings) -> TextSource:
    """Generate both splits. Raises UserError where the grammar cannot give as many examples."""
    train, validation = generate(data.seed, data.train_examples, data.validation_examples)
    return TextSource(_rows("data.train_examples", train), _rows("data.validation_examples", validation), list(CLASSES))


def identify(data: BuiltinNliSettings) -> dict[str, Any]:
    """What names the corpus: the keys and the version of the text that the grammar gives."""
    return {**collect_source_keys(data), "version": VERSION}


def _rows(key: str, examples: list[Triple]) -> TextRows:
    return TextRows.of(key, "example ", [(label, premise, hypothesis) for premise, hypothesis, label in examples])


# The lexicon. Plurals are regular where the grammar makes them.

NAMES = ["Anna", "Ben", "Carl", "Dora", "Emma", "Felix", "Grace", "Henry"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
SIGHTINGS = {"see": "saw", "draw": "drew", "notice": "noticed", "find": "found", "photograph": "photographed"}
DEEDS = {"help": "helped", "call": "called", "thank": "thanked", "visit": "visited", "invite": "invited"}
DOINGS = ["singing", "dancing", "reading", "cooking", "sleeping", "working", "waiting"]
PLACES = ["in the house", "in the garden", "in the street", "at the station", "at the market", "near the lake"]
KINDS = {  # a general noun: nouns for its kinds
    "flower": ["rose", "tulip", "orchid", "daffodil"],
    "animal": ["dog", "cat", "horse", "rabbit"],
    "tool": ["hammer", "drill", "shovel", "chisel"],
    "vehicle": ["car", "truck", "van", "tractor"],
    "garment": ["coat", "shirt", "skirt", "sweater"],
    "vegetable": ["carrot", "onion", "leek", "cucumber"],
    "instrument": ["violin", "guitar", "trumpet", "flute"],
    "toy": ["doll", "ball", "kite", "puzzle"],
}
COLOURS = ["red", "blue", "green", "white", "black", "orange"]
COLOURED = ["coat", "hat", "jacket", "kite", "tent", "umbrella", "boat", "bicycle"]

# The grammar: the forms of each phenomenon, and the worlds that each is true in.

# Did a see an x, a y (another of its kind), a third of the kind, anything else?
KIND_FORMS: Forms = {
    "{a} {saw} {an_x}.": lambda x, y, third, other: x,
    "{a} {saw} {a_y}.": lambda x, y, third, other: y,
    "{a} {saw} {an_x} and {a_y}.": lambda x, y, third, other: x and y,
    "{a} {saw} {a_kind}.": lambda x, y, third, other: x or y or third,
    "{a} did not {see} any {x}s.": lambda x, y, third, other: not x,
    "{a} did not {see} any {y}s.": lambda x, y, third, other: not y,
    "{a} did not {see} any {kind}s.": lambda x, y, third, other: not (x or y or third),
    "{a} did not {see} anything.": lambda x, y, third, other: not (x or y or third or other),
}
# How many x did a see?
NUMBER_FORMS: Forms = {
    f"{{a}} {{saw}} {bound} {number} {{x}}s.": lambda count, n=n, holds=holds: holds(count, n)
    for (n, number), (bound, holds) in product(
        NUMBERS.items(),
        {
            "exactly": lambda count, n: count == n,
            "at least": lambda count, n: count >= n,
            "at most": lambda count, n: count <= n,
            "more than": lambda count, n: count > n,
            "fewer than": lambda count, n: count < n,
        }.items(),
    )
}
# How many of a's two x are there, how many of a's two others of the kind?
QUANTIFIER_FORMS: Forms = {
    "All of {a}'s {x}s are {there}.": lambda x, other: x == 2,
    "Some of {a}'s {x}s are {there}.": lambda x, other: x > 0,
    "Not all of {a}'s {x}s are {there}.": lambda x, other: x < 2,
    "None of {a}'s {x}s are {there}.": lambda x, other: x == 0,
    "All of {a}'s {kind}s are {there}.": lambda x, other: x + other == 4,
    "Some of {a}'s {kind}s are {there}.": lambda x, other: x + other > 0,
    "Not all of {a}'s {kind}s are {there}.": lambda x, other: x + other < 4,
    "None of {a}'s {kind}s are {there}.": lambda x, other: x + other == 0,
}
# Did a help b, b help a?
ACTIVE_FORMS: Forms = {
    "{a} {helped} {b} on {day}.": lambda ab, ba: ab,
    "{b} {helped} {a} on {day}.": lambda ab, ba: ba,
    "{a} did not {help} {b} on {day}.": lambda ab, ba: not ab,
    "{b} did not {help} {a} on {day}.": lambda ab, ba: not ba,
}
PASSIVE_FORMS: Forms = {
    "{b} was {helped} by {a} on {day}.": lambda ab, ba: ab,
    "{a} was {helped} by {b} on {day}.": lambda ab, ba: ba,
    "{b} was not {helped} by {a} on {day}.": lambda ab, ba: not ab,
    "{a} was not {helped} by {b} on {day}.": lambda ab, ba: not ba,
}
# Is a there (or doing it), is b?
CONNECTIVE_FORMS: Forms = {
    "Both {a} and {b} are {there}.": lambda a, b: a and b,
    "At least one of {a} and {b} is {there}.": lambda a, b: a or b,
    "At most one of {a} and {b} is {there}.": lambda a, b: not (a and b),
    "Neither {a} nor {b} is {there}.": lambda a, b: not (a or b),
    "{a} is {there}.": lambda a, b: a,
    "{b} is {there}.": lambda a, b: b,
    "{a} is not {there}.": lambda a, b: not a,
    "{b} is not {there}.": lambda a, b: not b,
}


class Draw(random.Random):
    """Draws that are the same on every Python: only `random()` is promised not to change between versions."""

    def one(self, items: Iterable[Any]) -> Any:
        return self.some(items, 1)[0]

    def some(self, items: Iterable[Any], count: int) -> list[Any]:
        """`count` different items in a random order."""
        rest = list(items)
        return [rest.pop(int(self.random() * len(rest))) for _ in range(count)]


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _sighting(draw: Draw, x: str, y: str, kind: str) -> Slots:
    see, saw = draw.one(SIGHTINGS.items())
    nouns = {"x": x, "y": y, "kind": kind, "an_x": _a(x), "a_y": _a(y), "a_kind": _a(kind)}
    return nouns | {"a": draw.one(NAMES), "see": see, "saw": saw, "there": draw.one(PLACES)}


def _kinds(draw: Draw) -> Slots:
    kind = draw.one(KINDS)
    x, y = draw.some(KINDS[kind], 2)
    return _sighting(draw, x, y, kind)


def _colours(draw: Draw) -> Slots:
    thing, (x, y) = draw.one(COLOURED), draw.some(COLOURS, 2)
    return _sighting(draw, f"{x} {thing}", f"{y} {thing}", thing)


def _deeds(draw: Draw) -> Slots:
    (base, past), (a, b) = draw.one(DEEDS.items()), draw.some(NAMES, 2)
    return {"a": a, "b": b, "help": base, "helped": past, "day": draw.one(DAYS)}


def _whereabouts(draw: Draw) -> Slots:
    a, b = draw.some(NAMES, 2)
    return {"a": a, "b": b, "there": draw.one(PLACES + DOINGS)}


@dataclass
class Phenomenon:
    """The possible worlds, the sentence forms on either side of a pair, and how to fill their slots."""

    worlds: Sequence[World]
    premise_forms: Forms
    hypothesis_forms: Forms
    fill: Callable[[Draw], Slots]
    implicatures: bool = False  # whether a sentence may suggest more than it says, as "some are" suggests "not all are"
    premises: dict[str, list[list[str]]] = field(init=False)  # hypothesis form -> class -> premise forms

    def __post_init__(self) -> None:
        tables = {hypothesis: self._premises(hypothesis) for hypothesis in self.hypothesis_forms}
        self.premises = {hypothesis: table for hypothesis, table in tables.items() if all(table)}

    def _premises(self, hypothesis: str) -> list[list[str]]:
        """The premise forms of each class. Where readings may differ, a pair is left out."""
        table: list[list[str]] = [[], [], []]
        h = {world for world in self.worlds if self.hypothesis_forms[hypothesis](*world)}
        for premise, holds in self.premise_forms.items():
            p = {world for world in self.worlds if holds(*world)}
            label = 0 if p <= h else 1 if p & h else 2
            disputed = self.implicatures and label == 1 and len(p | h) == len(self.worlds)
            if premise != hypothesis and not disputed:
                table[label].append(premise)
        return table

    def pair(self, draw: Draw, label: int) -> tuple[str, str]:
        """A premise and a hypothesis of the class. A hypothesis form is as likely in one class as in another."""
        hypothesis = draw.one(self.premises)
        premise = draw.one(self.premises[hypothesis][label])
        slots = self.fill(draw)
        return premise.format(**slots), hypothesis.format(**slots)


def _worlds(values: int, facts: int) -> list[World]:
    return list(product(range(values), repeat=facts))


PHENOMENA = {
    "hypernyms": Phenomenon(_worlds(2, 4), KIND_FORMS, KIND_FORMS, _kinds),
    "modifiers": Phenomenon(_worlds(2, 4), KIND_FORMS, KIND_FORMS, _colours),
    "numerals": Phenomenon(_worlds(9, 1), NUMBER_FORMS, NUMBER_FORMS, _kinds),
    "quantifiers": Phenomenon(_worlds(3, 2), QUANTIFIER_FORMS, QUANTIFIER_FORMS, _kinds, implicatures=True),
    "voice": Phenomenon(_worlds(2, 2), ACTIVE_FORMS, PASSIVE_FORMS, _deeds),
    "connectives": Phenomenon(_worlds(2, 2), CONNECTIVE_FORMS, CONNECTIVE_FORMS, _whereabouts),
}


def _held_out(sentence: str) -> bool:
    """Whether a sentence belongs to validation: one in four does, whatever the seed and wherever it occurs."""
    return hashlib.sha256(sentence.encode()).digest()[0] < 64


def _split(draw: Draw, examples: int, held_out: bool, key: str) -> list[Triple]:
    """Distinct pairs, classes and phenomena in equal numbers, in a random order."""
    if examples < 1:
        raise UserError(f"data.{key}: must be at least 1, not {examples}")
    phenomena = list(PHENOMENA.values())
    pairs: dict[tuple[str, str], int] = {}
    misses = 0
    while len(pairs) < examples:
        label = len(pairs) % len(CLASSES)
        pair = phenomena[len(pairs) // len(CLASSES) % len(phenomena)].pair(draw, label)
        if pair not in pairs and all(_held_out(sentence) == held_out for sentence in pair):
            pairs[pair] = label
            misses = 0
        elif (misses := misses + 1) == PATIENCE:
            raise UserError(f"data.{key}: the built-in grammar gives about {len(pairs)} pairs, not {examples}")
    return draw.some(((*pair, label) for pair, label in pairs.items()), examples)


def generate(seed: int, train_examples: int, validation_examples: int) -> tuple[list[Triple], list[Triple]]:
    """(premise, hypothesis, class index) for train and validation; no sentence occurs in both.

    Raises UserError where the grammar cannot give as many.
    """
    draw = Draw(seed)
    return (
        _split(draw, train_examples, held_out=False, key="train_examples"),
        _split(draw, validation_examples, held_out=True, key="validation_examples"),
    )
