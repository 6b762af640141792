"""Sentence-pair inference data generated in memory from a grammar and a lexicon.

No label is written by hand. A phenomenon is a small set of possible worlds and a list of sentence forms, each with the
worlds it is true in. A hypothesis is entailed when it is true wherever the premise is, contradicted when it is true
nowhere the premise is, and neutral otherwise. So no word of a sentence tells the class: only the pair does.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from common.errors import UserError

CLASSES = ["entailment", "neutral", "contradiction"]
VERSION = 1  # part of the cache key: raise it whenever the text produced changes
TRAIN_LIMIT, VALIDATION_LIMIT = 60_000, 6_000  # what every phenomenon can give in every class, with room to spare

Triple = tuple[str, str, int]
Slots = dict[str, str]

# The lexicon.

NAMES = [
    "Anna",
    "Ben",
    "Carl",
    "Dora",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Karen",
    "Leo",
    "Maria",
    "Nora",
    "Oscar",
    "Paul",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
OUTDOORS = ["in the park", "at the market", "near the lake", "behind the school", "on the farm", "at the fair"]
INDOORS = ["in the kitchen", "in the library", "in the museum", "at the station", "in the hotel", "in the theatre"]
ACTIVITIES = ["singing", "dancing", "reading", "cooking", "sleeping", "working"]
SIGHT = {"see": "saw", "draw": "drew", "notice": "noticed", "find": "found", "photograph": "photographed"}
DEEDS = {  # done by one person to another, and possibly in return
    "help": "helped", "call": "called", "thank": "thanked", "visit": "visited", "invite": "invited",
    "praise": "praised", "warn": "warned", "pay": "paid",
}  # fmt: skip
KINDS = {  # hypernym: its hyponyms, all with a regular plural
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
STATES = {  # state and its opposite, one of which always holds: what can be in them
    ("open", "closed"): "doors windows gates drawers",
    ("locked", "unlocked"): "doors gates suitcases safes",
    ("awake", "asleep"): "children guards nurses dogs",
    ("married", "unmarried"): "teachers guests waiters guards",
    ("alive", "dead"): "roses trees birds snails",
    ("broken", "intact"): "cups plates chairs mirrors",
    ("vacant", "occupied"): "rooms tables offices beds",
}
SCALES = {"tall": ("taller", "shorter"), "old": ("older", "younger"), "fast": ("faster", "slower"),
          "heavy": ("heavier", "lighter"), "rich": ("richer", "poorer"), "strong": ("stronger", "weaker")}  # fmt: skip


class Draw(random.Random):
    """Draws that are the same on every Python: only `random()` is promised not to change between versions."""

    def one(self, items: Iterable[Any]) -> Any:
        return self.some(items, 1)[0]

    def some(self, items: Iterable[Any], count: int) -> list[Any]:
        """`count` different items in a random order."""
        rest = list(items)
        return [rest.pop(int(self.random() * len(rest))) for _ in range(count)]


@dataclass
class Phenomenon:
    """Sentence forms, the worlds each is true in, and the words that fill them."""

    worlds: Sequence[tuple[Any, ...]]
    forms: Mapping[str, Callable[..., bool]]
    fill: Callable[[Draw], Slots]
    premises: dict[str, list[list[str]]] = field(init=False)  # hypothesis form -> class -> premise forms

    def __post_init__(self) -> None:
        everywhere = frozenset(self.worlds)
        true_in = {form: frozenset(w for w in self.worlds if holds(*w)) for form, holds in self.forms.items()}
        table: dict[str, list[list[str]]] = {form: [[], [], []] for form in self.forms}
        for (premise, p), (hypothesis, h) in product(true_in.items(), repeat=2):
            label = 0 if p <= h else 1 if p & h else 2
            # Where one of the two always holds ("some are", "not all are"), logic says neutral but usage often does not.
            disputed = label == 1 and p | h == everywhere
            if premise != hypothesis and not disputed:
                table[hypothesis][label].append(premise)
        self.premises = {hypothesis: classes for hypothesis, classes in table.items() if all(classes)}

    def pair(self, draw: Draw, label: int) -> tuple[str, str]:
        """A premise and a hypothesis of the class. Every hypothesis form is as likely in one class as in another."""
        hypothesis = draw.one(self.premises)
        premise = draw.one(self.premises[hypothesis][label])
        slots = self.fill(draw)
        return premise.format(**slots), hypothesis.format(**slots)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _sighting(draw: Draw) -> Slots:
    a, b = draw.some(NAMES, 2)
    base, past = draw.one(SIGHT.items())
    return {"a": a, "b": b, "see": base, "saw": past, "place": draw.one(OUTDOORS)}


def _kinds(draw: Draw, coloured: bool) -> Slots:
    """Two kinds x, y of one general kind: two hyponyms of a hypernym, or two colours of a thing."""
    if coloured:
        general = draw.one(COLOURED)
        x, y = (f"{colour} {general}" for colour in draw.some(COLOURS, 2))
    else:
        general = draw.one(KINDS)
        x, y = draw.some(KINDS[general].split(), 2)
    return _sighting(draw) | {"x": x, "y": y, "an_x": _a(x), "a_y": _a(y), "general": general, "a_general": _a(general)}


def _counts(draw: Draw) -> Slots:
    x, y = draw.some(KINDS[draw.one(KINDS)].split(), 2)
    return _sighting(draw) | {"x": x, "y": y}


def _states(draw: Draw) -> Slots:
    states = draw.one(STATES)
    (x, y), (on, off) = draw.some(STATES[states].split(), 2), draw.some(states, 2)
    return {"x": x, "y": y, "on": on, "off": off, "place": draw.one(INDOORS)}


def _people(draw: Draw) -> Slots:
    a, b, c = draw.some(NAMES, 3)
    base, past = draw.one(DEEDS.items())
    return {
        "a": a,
        "b": b,
        "c": c,
        "help": base,
        "helped": past,
        "day": draw.one(DAYS),
        "busy": draw.one(INDOORS + ACTIVITIES),
    }


def _scales(draw: Draw) -> Slots:
    (tall, (taller, shorter)), (old, (older, younger)) = draw.some(SCALES.items(), 2)
    a, b = draw.some(NAMES, 2)
    return {
        "a": a,
        "b": b,
        "tall": tall,
        "taller": taller,
        "shorter": shorter,
        "old": old,
        "older": older,
        "younger": younger,
    }


# The grammar.

_TRUTH = (False, True)

# Worlds: did a see an x, a y, another thing of the general kind, anything else; did b see an x, another one?
_KIND_FORMS: dict[str, Callable[..., bool]] = {
    "{a} {saw} {an_x} {place}.": lambda x, y, z, e, b: x,
    "{a} {saw} {a_y} {place}.": lambda x, y, z, e, b: y,
    "{a} {saw} {an_x} and {a_y} {place}.": lambda x, y, z, e, b: x and y,
    "{a} {saw} {a_general} {place}.": lambda x, y, z, e, b: x or y or z,
    "{a} did not {see} any {x}s {place}.": lambda x, y, z, e, b: not x,
    "{a} did not {see} any {y}s {place}.": lambda x, y, z, e, b: not y,
    "{a} did not {see} any {general}s {place}.": lambda x, y, z, e, b: not (x or y or z),
    "{a} did not {see} anything {place}.": lambda x, y, z, e, b: not (x or y or z or e),
    "{b} {saw} {an_x} {place}.": lambda x, y, z, e, b: b,
    "{b} did not {see} any {x}s {place}.": lambda x, y, z, e, b: not b,
}
_BOUNDS: dict[str, Callable[[int, int], bool]] = {
    "exactly": lambda count, n: count == n,
    "at least": lambda count, n: count >= n,
    "at most": lambda count, n: count <= n,
    "more than": lambda count, n: count > n,
    "fewer than": lambda count, n: count < n,
}


def _number_forms() -> dict[str, Callable[..., bool]]:
    """Worlds: how many x a saw, how many y."""
    forms: dict[str, Callable[..., bool]] = {}
    for (bound, holds), (n, number), of_y in product(_BOUNDS.items(), NUMBERS.items(), (0, 1)):
        form = f"{{a}} {{saw}} {bound} {number} {{{'xy'[of_y]}}}s {{place}}."
        forms[form] = partial(lambda x, y, holds, n, of_y: holds(y if of_y else x, n), holds=holds, n=n, of_y=of_y)
    return forms


PHENOMENA = {
    "hypernyms": Phenomenon(list(product(_TRUTH, repeat=5)), _KIND_FORMS, partial(_kinds, coloured=False)),
    "modifiers": Phenomenon(list(product(_TRUTH, repeat=5)), _KIND_FORMS, partial(_kinds, coloured=True)),
    "numerals": Phenomenon(list(product(range(11), repeat=2)), _number_forms(), _counts),
    "quantifiers": Phenomenon(  # worlds: how many x of four are on, how many y
        list(product(range(5), repeat=2)),
        {
            f"{quantifier} {{{thing}}} {{place}} are {{{state}}}.": partial(
                lambda x, y, holds, thing, state: holds(
                    (x if thing == "x" else y) if state == "on" else 4 - (x if thing == "x" else y)
                ),
                holds=holds,
                thing=thing,
                state=state,
            )
            for (quantifier, holds), thing, state in product(
                {
                    "All of the": lambda n: n == 4,
                    "Most of the": lambda n: n > 2,
                    "Some of the": lambda n: n > 0,
                    "Not all of the": lambda n: n < 4,
                    "None of the": lambda n: n == 0,
                }.items(),
                ("x", "y"),
                ("on", "off"),
            )
        },
        _states,
    ),
    "voice": Phenomenon(  # worlds: did a help b, b help a?
        list(product(_TRUTH, repeat=2)),
        {
            "{a} {helped} {b} on {day}.": lambda ab, ba: ab,
            "{b} {helped} {a} on {day}.": lambda ab, ba: ba,
            "{b} was {helped} by {a} on {day}.": lambda ab, ba: ab,
            "{a} was {helped} by {b} on {day}.": lambda ab, ba: ba,
            "{a} did not {help} {b} on {day}.": lambda ab, ba: not ab,
            "{b} did not {help} {a} on {day}.": lambda ab, ba: not ba,
            "{b} was not {helped} by {a} on {day}.": lambda ab, ba: not ab,
            "{a} was not {helped} by {b} on {day}.": lambda ab, ba: not ba,
        },
        _people,
    ),
    "connectives": Phenomenon(  # worlds: is a busy, b, c?
        list(product(_TRUTH, repeat=3)),
        {
            "Both {a} and {b} are {busy}.": lambda a, b, c: a and b,
            "At least one of {a} and {b} is {busy}.": lambda a, b, c: a or b,
            "At most one of {a} and {b} is {busy}.": lambda a, b, c: not (a and b),
            "Neither {a} nor {b} is {busy}.": lambda a, b, c: not (a or b),
            "{a} is {busy}.": lambda a, b, c: a,
            "{b} is {busy}.": lambda a, b, c: b,
            "{c} is {busy}.": lambda a, b, c: c,
            "{a} is not {busy}.": lambda a, b, c: not a,
            "{b} is not {busy}.": lambda a, b, c: not b,
            "{c} is not {busy}.": lambda a, b, c: not c,
        },
        _people,
    ),
    "comparatives": Phenomenon(  # worlds: a less b in height, in age
        list(product((-1, 0, 1), repeat=2)),
        {
            "{a} is {taller} than {b}.": lambda height, age: height > 0,
            "{b} is {taller} than {a}.": lambda height, age: height < 0,
            "{a} is {shorter} than {b}.": lambda height, age: height < 0,
            "{b} is {shorter} than {a}.": lambda height, age: height > 0,
            "{a} is not as {tall} as {b}.": lambda height, age: height < 0,
            "{b} is not as {tall} as {a}.": lambda height, age: height > 0,
            "{a} is exactly as {tall} as {b}.": lambda height, age: height == 0,
            "{b} is exactly as {tall} as {a}.": lambda height, age: height == 0,
            "{a} is {older} than {b}.": lambda height, age: age > 0,
            "{a} is {younger} than {b}.": lambda height, age: age < 0,
            "{b} is not as {old} as {a}.": lambda height, age: age > 0,
            "{a} is exactly as {old} as {b}.": lambda height, age: age == 0,
        },
        _scales,
    ),
}


def _held_out(sentence: str) -> bool:
    """Whether a sentence belongs to validation: one in four does, whatever the seed and wherever it occurs."""
    return hashlib.sha256(sentence.encode()).digest()[0] < 64


def _split(draw: Draw, examples: int, held_out: bool) -> list[Triple]:
    """Distinct pairs, classes and phenomena in equal numbers, in a random order."""
    pairs: dict[tuple[str, str], int] = {}
    phenomena = list(PHENOMENA.values())
    while len(pairs) < examples:
        label = len(pairs) % len(CLASSES)
        phenomenon = phenomena[len(pairs) // len(CLASSES) % len(phenomena)]
        pair = phenomenon.pair(draw, label)
        if all(_held_out(sentence) == held_out for sentence in pair):
            pairs.setdefault(pair, label)
    return draw.some(((*pair, label) for pair, label in pairs.items()), examples)


def generate(seed: int, train_examples: int, validation_examples: int) -> tuple[list[Triple], list[Triple]]:
    """(premise, hypothesis, class index) for train and validation; no sentence occurs in both."""
    for key, examples, limit in (
        ("train_examples", train_examples, TRAIN_LIMIT),
        ("validation_examples", validation_examples, VALIDATION_LIMIT),
    ):
        if not 1 <= examples <= limit:
            raise UserError(f"data.{key}: must be from 1 to {limit} for the built-in grammar, not {examples}")
    draw = Draw(seed)
    return _split(draw, train_examples, held_out=False), _split(draw, validation_examples, held_out=True)
