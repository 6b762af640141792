"""Grammar of the built-in sentence pairs.

No label is written by hand. A phenomenon is a small set of possible worlds and a list of sentence forms, each with the
worlds in which it is true. A hypothesis is entailed (class 0) if it is true in every world in which the premise is
true, contradicted (class 2) if it is true in none of these worlds, and neutral (class 1) otherwise. So the class
depends on the pair of sentences, and hardly on the words in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from common.data.text.nli_lexicon import (
    NUMBERS,
    Slots,
    StableRandom,
    fill_colours,
    fill_deeds,
    fill_kinds,
    fill_whereabouts,
)

World = tuple[int, ...]  # the value of each fact: 0 or 1 for yes and no, or a number
Forms = Mapping[str, Callable[..., bool]]  # sentence with slots -> function that says whether it is true in a world

# Each table has the sentence forms of one phenomenon. The questions in the comment before a table are the facts of its
# worlds, in the order of the arguments. `_list_worlds` lists all combinations of their answers.

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
# How many of a's two x are `there` (at a place)? How many of a's two other things of the kind?
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
# Is `a` `there` (at a place or doing something)? Is `b`?
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


@dataclass
class Phenomenon:
    """A linguistic phenomenon: possible worlds, sentence forms, and how the slots of the forms are filled."""

    worlds: Sequence[World]
    premise_forms: Forms
    hypothesis_forms: Forms
    fill_slots: Callable[[StableRandom], Slots]
    implicatures: bool = False  # whether a sentence may suggest more than it says, as "some are" suggests "not all are"
    # Hypothesis form -> class -> premise forms. Hypotheses that some class has no premise for are left out.
    premises: dict[str, list[list[str]]] = field(init=False)

    def __post_init__(self) -> None:
        tables = {hypothesis: self._classify_premises(hypothesis) for hypothesis in self.hypothesis_forms}
        self.premises = {hypothesis: table for hypothesis, table in tables.items() if all(table)}

    def _classify_premises(self, hypothesis: str) -> list[list[str]]:
        """Return the premise forms of each class. Pairs that people may read in two ways are left out.

        With implicatures, a neutral pair can be read in two ways if every world makes one of its sentences true, or
        both: "some are" and "not all are" are neutral, but each suggests the other.
        """
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
    """Return all worlds of a number of facts, each of which has a value from 0 to values - 1."""
    return list(product(range(values), repeat=facts))


PHENOMENA = {
    "hypernyms": Phenomenon(_list_worlds(2, 4), KIND_FORMS, KIND_FORMS, fill_kinds),
    "modifiers": Phenomenon(_list_worlds(2, 4), KIND_FORMS, KIND_FORMS, fill_colours),
    "numerals": Phenomenon(_list_worlds(9, 1), NUMBER_FORMS, NUMBER_FORMS, fill_kinds),
    "quantifiers": Phenomenon(_list_worlds(3, 2), QUANTIFIER_FORMS, QUANTIFIER_FORMS, fill_kinds, implicatures=True),
    "voice": Phenomenon(_list_worlds(2, 2), ACTIVE_FORMS, PASSIVE_FORMS, fill_deeds),
    "connectives": Phenomenon(_list_worlds(2, 2), CONNECTIVE_FORMS, CONNECTIVE_FORMS, fill_whereabouts),
}
