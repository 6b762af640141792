"""Grammar and lexicon of the built-in sentence pairs.

No label is written by hand. A phenomenon is a small set of possible worlds and a list of sentence forms, each with the
worlds in which it is true. A hypothesis is entailed if it is true in every world in which the premise is true,
contradicted if it is true in none of them, and neutral otherwise. So the class depends on the pair of sentences, and
hardly on the words in them.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

Slots = dict[str, str]  # name of a slot in a sentence form -> words
World = tuple[int, ...]  # one value for each fact
Forms = Mapping[str, Callable[..., bool]]  # sentence with slots -> whether it is true in a world

Item = TypeVar("Item")

# Lexicon. The grammar adds an s to a noun for its plural, so every noun must have a regular plural.

NAMES = ["Anna", "Ben", "Carl", "Dora", "Emma", "Felix", "Grace", "Henry"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
SIGHTINGS = {"see": "saw", "draw": "drew", "notice": "noticed", "find": "found", "photograph": "photographed"}
DEEDS = {"help": "helped", "call": "called", "thank": "thanked", "visit": "visited", "invite": "invited"}
DOINGS = ["singing", "dancing", "reading", "cooking", "sleeping", "working", "waiting"]
PLACES = ["in the house", "in the garden", "in the street", "at the station", "at the market", "near the lake"]
KINDS = {  # general noun -> nouns of its kinds
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

# Grammar: the sentence forms of each phenomenon, and for each form whether it is true in a world.
# The comment before each table says which facts make up a world.

# Did `a` see an x, a y (of the same kind as x), another thing of the kind, a thing of another kind?
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
# How many x did `a` see?
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
# How many of a's two x are there? How many of a's two other things of the kind?
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
# Did `a` help `b`? Did `b` help `a`?
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
# Is `a` there (or doing the activity)? Is `b`?
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


class StableRandom(random.Random):
    """Random choices that are the same in every Python version, which only `random()` itself guarantees."""

    def draw_one(self, items: Iterable[Item]) -> Item:
        """Return a random item."""
        return self.draw_some(items, 1)[0]

    def draw_some(self, items: Iterable[Item], count: int) -> list[Item]:
        """Return `count` different items in a random order."""
        remaining = list(items)
        return [remaining.pop(int(self.random() * len(remaining))) for _ in range(count)]


def _add_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _fill_sighting(generator: StableRandom, x: str, y: str, kind: str) -> Slots:
    see, saw = generator.draw_one(SIGHTINGS.items())
    nouns = {"x": x, "y": y, "kind": kind}
    articles = {"an_x": _add_article(x), "a_y": _add_article(y), "a_kind": _add_article(kind)}
    name, place = generator.draw_one(NAMES), generator.draw_one(PLACES)
    return {**nouns, **articles, "a": name, "see": see, "saw": saw, "there": place}


def _fill_kinds(generator: StableRandom) -> Slots:
    kind = generator.draw_one(KINDS)
    x, y = generator.draw_some(KINDS[kind], 2)
    return _fill_sighting(generator, x, y, kind)


def _fill_colours(generator: StableRandom) -> Slots:
    thing, (x, y) = generator.draw_one(COLOURED), generator.draw_some(COLOURS, 2)
    return _fill_sighting(generator, f"{x} {thing}", f"{y} {thing}", thing)


def _fill_deeds(generator: StableRandom) -> Slots:
    (base, past), (a, b) = generator.draw_one(DEEDS.items()), generator.draw_some(NAMES, 2)
    return {"a": a, "b": b, "help": base, "helped": past, "day": generator.draw_one(DAYS)}


def _fill_whereabouts(generator: StableRandom) -> Slots:
    a, b = generator.draw_some(NAMES, 2)
    return {"a": a, "b": b, "there": generator.draw_one(PLACES + DOINGS)}


@dataclass
class Phenomenon:
    """A linguistic phenomenon: possible worlds, sentence forms, and how the slots of the forms are filled."""

    worlds: Sequence[World]
    premise_forms: Forms
    hypothesis_forms: Forms
    fill_slots: Callable[[StableRandom], Slots]
    implicatures: bool = False  # whether a sentence may suggest more than it says, as "some are" suggests "not all are"
    premises: dict[str, list[list[str]]] = field(init=False)  # hypothesis form -> class -> premise forms

    def __post_init__(self) -> None:
        tables = {hypothesis: self._classify_premises(hypothesis) for hypothesis in self.hypothesis_forms}
        self.premises = {hypothesis: table for hypothesis, table in tables.items() if all(table)}

    def _classify_premises(self, hypothesis: str) -> list[list[str]]:
        """Return the premise forms of each class. A pair that people may read in two ways is left out."""
        table: list[list[str]] = [[], [], []]
        hypothesis_worlds = {world for world in self.worlds if self.hypothesis_forms[hypothesis](*world)}
        for premise, holds in self.premise_forms.items():
            worlds = {world for world in self.worlds if holds(*world)}
            label = 0 if worlds <= hypothesis_worlds else 1 if worlds & hypothesis_worlds else 2
            is_disputed = self.implicatures and label == 1 and len(worlds | hypothesis_worlds) == len(self.worlds)
            if premise != hypothesis and not is_disputed:
                table[label].append(premise)
        return table

    def draw_pair(self, generator: StableRandom, label: int) -> tuple[str, str]:
        """Return a premise and a hypothesis of the class. Every hypothesis form is equally likely in all classes."""
        hypothesis = generator.draw_one(self.premises)
        premise = generator.draw_one(self.premises[hypothesis][label])
        slots = self.fill_slots(generator)
        return premise.format(**slots), hypothesis.format(**slots)


def _list_worlds(values: int, facts: int) -> list[World]:
    return list(product(range(values), repeat=facts))


PHENOMENA = {
    "hypernyms": Phenomenon(_list_worlds(2, 4), KIND_FORMS, KIND_FORMS, _fill_kinds),
    "modifiers": Phenomenon(_list_worlds(2, 4), KIND_FORMS, KIND_FORMS, _fill_colours),
    "numerals": Phenomenon(_list_worlds(9, 1), NUMBER_FORMS, NUMBER_FORMS, _fill_kinds),
    "quantifiers": Phenomenon(_list_worlds(3, 2), QUANTIFIER_FORMS, QUANTIFIER_FORMS, _fill_kinds, implicatures=True),
    "voice": Phenomenon(_list_worlds(2, 2), ACTIVE_FORMS, PASSIVE_FORMS, _fill_deeds),
    "connectives": Phenomenon(_list_worlds(2, 2), CONNECTIVE_FORMS, CONNECTIVE_FORMS, _fill_whereabouts),
}
