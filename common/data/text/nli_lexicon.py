"""Words of the built-in sentence pairs, and the random choice of words for the slots of a sentence form."""

import random
from collections.abc import Iterable
from typing import TypeVar

Slots = dict[str, str]  # name of a slot in a sentence form such as "{a} {saw} {an_x}." -> words

Item = TypeVar("Item")

# The grammar adds an s to a noun for its plural, so every noun must have a regular plural.

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


class StableRandom(random.Random):
    """Random choices that are the same in every Python version. Of random.Random, only `random()` guarantees this."""

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


def fill_kinds(generator: StableRandom) -> Slots:
    """Return words about two things of one kind."""
    kind = generator.draw_one(KINDS)
    x, y = generator.draw_some(KINDS[kind], 2)
    return _fill_sighting(generator, x, y, kind)


def fill_colours(generator: StableRandom) -> Slots:
    """Return words about one thing in two colours."""
    thing, (x, y) = generator.draw_one(COLOURED), generator.draw_some(COLOURS, 2)
    return _fill_sighting(generator, f"{x} {thing}", f"{y} {thing}", thing)


def fill_deeds(generator: StableRandom) -> Slots:
    """Return words about two people, one of whom may do something to the other."""
    (base, past), (a, b) = generator.draw_one(DEEDS.items()), generator.draw_some(NAMES, 2)
    return {"a": a, "b": b, "help": base, "helped": past, "day": generator.draw_one(DAYS)}


def fill_whereabouts(generator: StableRandom) -> Slots:
    """Return words about two people who may be somewhere or do something."""
    a, b = generator.draw_some(NAMES, 2)
    return {"a": a, "b": b, "there": generator.draw_one(PLACES + DOINGS)}
