"""Sentence-pair inference data generated in memory from a grammar and a lexicon.

No label is written by hand. A phenomenon is a small set of possible worlds and a list of sentence forms, each with the
worlds it is true in. A hypothesis is entailed when it is true wherever the premise is, contradicted when it is true
nowhere the premise is, and neutral otherwise. So it is the pair that tells the class, and hardly the words in it.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from common.errors import UserError

CLASSES = ["entailment", "neutral", "contradiction"]
VERSION = 1  # part of the cache key: raise it whenever the text produced changes
PATIENCE = 20_000  # draws without a new pair after which the grammar counts as exhausted

Triple = tuple[str, str, int]
Slots = dict[str, str]
Forms = Mapping[str, Callable[..., bool]]  # sentence with slots -> is it true in this world?

# The lexicon.

NAMES = ["Anna", "Ben", "Carl", "Dora", "Emma", "Felix", "Grace", "Henry"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
OUTDOORS = ["in the park", "at the market", "near the lake", "behind the school", "on the farm", "at the fair"]
INDOORS = [
    f"in the {room}" for room in ("kitchen", "library", "museum", "hotel", "theatre", "school", "office", "castle")
]
ACTIVITIES = ["singing", "dancing", "reading", "cooking", "sleeping", "working"]
SIGHTINGS = dict(see="saw", draw="drew", notice="noticed", find="found", photograph="photographed")
DEEDS = dict(help="helped", call="called", thank="thanked", visit="visited", invite="invited", praise="praised")
KINDS = {  # what is general: its kinds, none of which is another; every plural is regular
    "flower": "rose tulip orchid daffodil",
    "animal": "dog cat horse rabbit",
    "bird": "sparrow owl parrot eagle",
    "insect": "bee ant beetle moth",
    "tool": "hammer drill shovel ladder",
    "vehicle": "car truck van tractor",
    "tree": "oak pine maple willow",
    "vegetable": "carrot onion leek cucumber",
    "instrument": "violin guitar trumpet flute",
}
COLOURS = ["red", "blue", "green", "white", "black", "orange"]
COLOURED = ["coat", "hat", "jacket", "kite", "tent", "umbrella", "boat", "bicycle"]
STATES = {  # two states of which exactly one holds: what can be in them
    ("open", "closed"): "doors windows gates drawers boxes",
    ("locked", "unlocked"): "doors gates suitcases safes boxes",
    ("awake", "asleep"): "children nurses guards dogs cats",
    ("married", "unmarried"): "teachers guests waiters guards nurses",
    ("broken", "intact"): "cups plates chairs mirrors clocks",
    ("painted", "unpainted"): "walls doors chairs tables shelves",
}

# The grammar: the forms of each phenomenon, and what each says about a world.

# Did a see an x, a y, another thing of that kind, anything else? Did b see an x?
KIND_FORMS: Forms = {
    "{a} {saw} {an_x} {place}.": lambda x, y, z, other, b: x,
    "{a} {saw} {a_y} {place}.": lambda x, y, z, other, b: y,
    "{a} {saw} {an_x} and {a_y} {place}.": lambda x, y, z, other, b: x and y,
    "{a} {saw} {a_general} {place}.": lambda x, y, z, other, b: x or y or z,
    "{a} did not {see} any {x}s {place}.": lambda x, y, z, other, b: not x,
    "{a} did not {see} any {y}s {place}.": lambda x, y, z, other, b: not y,
    "{a} did not {see} any {general}s {place}.": lambda x, y, z, other, b: not (x or y or z),
    "{a} did not {see} anything {place}.": lambda x, y, z, other, b: not (x or y or z or other),
    "{b} {saw} {an_x} {place}.": lambda x, y, z, other, b: b,
    "{b} did not {see} any {x}s {place}.": lambda x, y, z, other, b: not b,
}
# How many x did a see, how many b?
NUMBER_FORMS: Forms = {
    form: says
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
    for form, says in {
        f"{{a}} {{saw}} {bound} {number} {{x}}s {{place}}.": lambda a, b, n=n, holds=holds: holds(a, n),
        f"{{b}} {{saw}} {bound} {number} {{x}}s {{place}}.": lambda a, b, n=n, holds=holds: holds(b, n),
    }.items()
}
# How many of four things are on here, how many there? The rest are off.
QUANTIFIER_FORMS: Forms = {
    form: says
    for quantifier, holds in {
        "All of the": lambda count: count == 4,
        "Some of the": lambda count: count > 0,
        "Not all of the": lambda count: count < 4,
        "None of the": lambda count: count == 0,
    }.items()
    for form, says in {
        f"{quantifier} {{things}} {{here}} are {{on}}.": lambda here, there, holds=holds: holds(here),
        f"{quantifier} {{things}} {{here}} are {{off}}.": lambda here, there, holds=holds: holds(4 - here),
        f"{quantifier} {{things}} {{there}} are {{on}}.": lambda here, there, holds=holds: holds(there),
        f"{quantifier} {{things}} {{there}} are {{off}}.": lambda here, there, holds=holds: holds(4 - there),
    }.items()
}
# Did a help b, b help a?
VOICE_FORMS: Forms = {
    "{a} {helped} {b} on {day}.": lambda ab, ba: ab,
    "{b} {helped} {a} on {day}.": lambda ab, ba: ba,
    "{b} was {helped} by {a} on {day}.": lambda ab, ba: ab,
    "{a} was {helped} by {b} on {day}.": lambda ab, ba: ba,
    "{a} did not {help} {b} on {day}.": lambda ab, ba: not ab,
    "{b} did not {help} {a} on {day}.": lambda ab, ba: not ba,
    "{b} was not {helped} by {a} on {day}.": lambda ab, ba: not ab,
    "{a} was not {helped} by {b} on {day}.": lambda ab, ba: not ba,
}
# Are a, b and c there (or busy)?
CONNECTIVE_FORMS: Forms = {
    "Both {a} and {b} are {there}.": lambda a, b, c: a and b,
    "At least one of {a} and {b} is {there}.": lambda a, b, c: a or b,
    "At most one of {a} and {b} is {there}.": lambda a, b, c: not (a and b),
    "Neither {a} nor {b} is {there}.": lambda a, b, c: not (a or b),
    "{a} is {there}.": lambda a, b, c: a,
    "{b} is {there}.": lambda a, b, c: b,
    "{c} is {there}.": lambda a, b, c: c,
    "{a} is not {there}.": lambda a, b, c: not a,
    "{b} is not {there}.": lambda a, b, c: not b,
    "{c} is not {there}.": lambda a, b, c: not c,
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


def _sighting(draw: Draw, x: str, y: str, general: str) -> Slots:
    (see, saw), (a, b) = draw.one(SIGHTINGS.items()), draw.some(NAMES, 2)
    nouns = {"x": x, "y": y, "general": general, "an_x": _a(x), "a_y": _a(y), "a_general": _a(general)}
    return nouns | {"a": a, "b": b, "see": see, "saw": saw, "place": draw.one(OUTDOORS)}


def _kinds(draw: Draw) -> Slots:
    general = draw.one(KINDS)
    x, y = draw.some(KINDS[general].split(), 2)
    return _sighting(draw, x, y, general)


def _colours(draw: Draw) -> Slots:
    general = draw.one(COLOURED)
    x, y = (f"{colour} {general}" for colour in draw.some(COLOURS, 2))
    return _sighting(draw, x, y, general)


def _states(draw: Draw) -> Slots:
    states = draw.one(STATES)
    (on, off), (here, there) = draw.some(states, 2), draw.some(INDOORS, 2)
    return {"things": draw.one(STATES[states].split()), "on": on, "off": off, "here": here, "there": there}


def _deeds(draw: Draw) -> Slots:
    (help_, helped), (a, b) = draw.one(DEEDS.items()), draw.some(NAMES, 2)
    return {"a": a, "b": b, "help": help_, "helped": helped, "day": draw.one(DAYS)}


def _whereabouts(draw: Draw) -> Slots:
    a, b, c = draw.some(NAMES, 3)
    return {"a": a, "b": b, "c": c, "there": draw.one(INDOORS + ACTIVITIES)}


@dataclass
class Phenomenon:
    """The possible worlds, the sentence forms, and how to fill their slots."""

    worlds: Sequence[tuple[int, ...]]
    forms: Forms
    fill: Callable[[Draw], Slots]
    premises: dict[str, list[list[str]]] = field(init=False)  # hypothesis form -> class -> premise forms

    def __post_init__(self) -> None:
        true_in = {form: {world for world in self.worlds if holds(*world)} for form, holds in self.forms.items()}
        table: dict[str, list[list[str]]] = {form: [[], [], []] for form in self.forms}
        for (premise, p), (hypothesis, h) in product(true_in.items(), repeat=2):
            label = 0 if p <= h else 1 if p & h else 2
            # Where one of the two always holds ("some are", "not all are"), logic says neutral, usage often does not.
            disputed = label == 1 and len(p | h) == len(self.worlds)
            if premise != hypothesis and not disputed:
                table[hypothesis][label].append(premise)
        self.premises = {hypothesis: classes for hypothesis, classes in table.items() if all(classes)}

    def pair(self, draw: Draw, label: int) -> tuple[str, str]:
        """A premise and a hypothesis of the class. A hypothesis form is as likely in one class as in another."""
        hypothesis = draw.one(self.premises)
        premise = draw.one(self.premises[hypothesis][label])
        slots = self.fill(draw)
        return premise.format(**slots), hypothesis.format(**slots)


PHENOMENA = {
    "hypernyms": Phenomenon(list(product((0, 1), repeat=5)), KIND_FORMS, _kinds),
    "modifiers": Phenomenon(list(product((0, 1), repeat=5)), KIND_FORMS, _colours),
    "numerals": Phenomenon(list(product(range(9), repeat=2)), NUMBER_FORMS, _kinds),
    "quantifiers": Phenomenon(list(product(range(5), repeat=2)), QUANTIFIER_FORMS, _states),
    "voice": Phenomenon(list(product((0, 1), repeat=2)), VOICE_FORMS, _deeds),
    "connectives": Phenomenon(list(product((0, 1), repeat=3)), CONNECTIVE_FORMS, _whereabouts),
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

    Raises UserError (a ValueError) when the grammar cannot give as many.
    """
    draw = Draw(seed)
    return (
        _split(draw, train_examples, held_out=False, key="train_examples"),
        _split(draw, validation_examples, held_out=True, key="validation_examples"),
    )
