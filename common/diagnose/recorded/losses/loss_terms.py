"""The terms of a loss: the share of each call of a loss function, and the rest, computed without loss functions.

A script may add several losses with weights. A is the reference record of a diagnosis, and B the record that is
compared with it. The share of a term is the part of the loss that comes from it; the rest of a loss has no such call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.losses.divisors import explain_divisor
from common.diagnose.recorded.losses.label_counts import count_labels
from common.diagnose.recorded.losses.loss_formulas import CLOSE
from common.diagnose.recorded.losses.loss_settings import BY_SCRIPT, CAUSES, KINDS, describe_kind, read_loss_settings
from common.diagnose.recorded.losses.regularizers import list_activity_regularizers
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.recording.record_format import LossTerm

MISSING, WEIGHT, TERMS = "missing_loss_term", "loss_weight", "loss_terms"  # names of the causes
MOST_TERMS = 8  # number of terms that a sentence names


@dataclass(frozen=True)
class Term:
    """A call of a loss function, in the mean over the micro-batches of a step.

    Attributes:
        title: Words for the function, such as "squared error".
        settings: Its arguments under common names.
        value: The mean of the result of the call.
        share: The part of the loss that comes from it.
    """

    title: str
    settings: dict[str, object]
    value: float
    share: float

    @property
    def weight(self) -> float:
        """The factor of the value in the loss."""
        return self.share / self.value if self.value else 0.0

    @property
    def description(self) -> str:
        """Words for the term, such as "0.5 times the squared error (1.25)"."""
        factor = "" if np.isclose(self.weight, 1, rtol=1e-4) else f"{self.weight:.4g} times "
        return f"{factor}the {self.title} ({self.value:.6g})"


@dataclass(frozen=True)
class Sum:
    """The loss of a step as a sum.

    Attributes:
        terms: The calls of loss functions.
        rest: The part that is computed without a loss function.
    """

    terms: Sequence[Term]
    rest: float

    def describe(self, smallest: float) -> str:
        """Describe the sum. smallest: a rest that is not larger is left out."""
        words = [term.description for term in self.terms[:MOST_TERMS]]
        words += [f"{len(self.terms) - MOST_TERMS} more terms"] if len(self.terms) > MOST_TERMS else []
        if abs(self.rest) > smallest:
            words.append(f"{self.rest:.6g}, which is computed without a loss function")
        return " + ".join(words)

    def scale(self, factor: int) -> "Sum":
        """Return the sum times a factor."""
        return Sum([replace(term, share=term.share * factor) for term in self.terms], self.rest * factor)


def read_sum(side: RecordedSide, step: int) -> Sum | None:
    """Return the loss of a step as a sum; None if the recorder saw no terms, or other ones in each micro-batch."""
    batches, loss = _list_terms(side, step), side.record.get_loss(step)
    kinds = {tuple(term["name"] for term in batch) for batch in batches}
    if loss is None or kinds in (set(), {()}) or len(kinds) > 1:
        return None
    if any(term["share"] is None for batch in batches for term in batch):
        return None
    terms = []
    for calls in zip(*batches, strict=True):
        value, share = (float(np.mean([call[key] for call in calls])) for key in ("value", "share"))
        terms.append(Term(describe_kind(calls[0]), read_loss_settings(calls[0]), value, share))
    return Sum(_number_titles(terms), loss - sum(term.share for term in terms))


def _list_terms(side: RecordedSide, step: int) -> list[list[LossTerm]]:
    return [batch for facts in side.record.get_step_facts(step) for batch in facts.get("terms", [])]


def _number_titles(terms: Sequence[Term]) -> list[Term]:
    """Number the terms of the same kind, as in "squared error 2"."""
    titles = [term.title for term in terms]
    numbers = [titles[: index + 1].count(title) for index, title in enumerate(titles)]
    return [
        replace(term, title=f"{term.title} {number}") if titles.count(term.title) > 1 else term
        for term, number in zip(terms, numbers, strict=True)
    ]


def explain_terms(pair: RecordPair, step: int) -> list[Explanation]:
    """Explain by their terms why losses differ although the outputs and the labels are equal; none if unknown.

    A loss with a single term is explained by its formula instead.

    Args:
        pair: The records.
        step: The step.
    """
    a, b = (read_sum(side, step) for side in pair.sides)
    if a is None or b is None:
        return _explain_functions(pair, step)
    counts = [len(side.batches.list_micro_batches(step)) for side in pair.sides]
    if counts[0] != counts[1]:
        if any(len({*count_labels(side, step)}) > 1 for side in pair.sides):
            return []  # the mean of a step is not the mean over micro-batches of several sizes
        # A script may divide by the number of micro-batches
        scaled_a, scaled_b = (
            [x.scale(factor) for factor in sorted({1, count})] for x, count in zip((a, b), counts, strict=True)
        )
        a, b = min(product(scaled_a, scaled_b), key=_measure_difference)
    tolerance = CLOSE[pair.precision] * max(sum(abs(term.share) for term in x.terms) + abs(x.rest) for x in (a, b))
    if all(len(x.terms) == 1 and abs(x.rest) <= tolerance for x in (a, b)):
        return []
    pairs = _pair_terms(a.terms, b.terms, tolerance)
    # A term with the weight 0 contributes nothing
    only_a = [x for x in a.terms if all(x is not known for known, _ in pairs) and abs(x.share) > tolerance]
    only_b = [y for y in b.terms if all(y is not known for _, known in pairs) and abs(y.share) > tolerance]
    differing = [(x, y) for x, y in pairs if abs(x.share - y.share) > tolerance]
    has_equal_rest = abs(a.rest - b.rest) <= tolerance
    # The function of a script may compute what the other side has as known losses, or as several terms
    are_known = all(term.settings["kind"] in KINDS.values() for term in (*only_a, *only_b))
    if has_equal_rest and not differing and (len(only_a), len(only_b)) == (1, 1):
        divisor = _explain_divisor(pair, step, only_a[0], only_b[0])
        if divisor is not None:
            return [divisor]
    if not has_equal_rest or (len(only_a), len(only_b)) == (1, 1):
        sentence = f"the loss of A is {a.describe(tolerance)}; that of B is {b.describe(tolerance)}"
        if not has_equal_rest and (paths := list_activity_regularizers(pair.sides)):
            sentence += f": compare the activity regularizer of {', '.join(paths)}"
        return [Explanation(TERMS, sentence, confirmed=has_equal_rest and are_known)]
    explanations = [_explain_divisor(pair, step, x, y) or _explain_term(x, y) for x, y in differing]
    for terms, side, other in ((only_a, "A", "B"), (only_b, "B", "A")):
        explanations += [
            Explanation(
                MISSING, f"the loss of {side} has {term.description}, and that of {other} has no such term",
                confirmed=are_known, side=other.lower(),
            )
            for term in terms
        ]  # fmt: skip
    return explanations


def _measure_difference(sums: tuple[Sum, Sum]) -> tuple[int, float]:
    """Return the number of terms with different shares, and the sum of their differences relative to the first sum."""
    a, b = sums
    total = sum(abs(term.share) for term in a.terms) + abs(a.rest) or 1.0
    differences = [abs(x.share - y.share) / total for x, y in _pair_terms(a.terms, b.terms, 0.0)]
    return sum(difference > CLOSE["float32"] for difference in differences), sum(differences)


def _explain_functions(pair: RecordPair, step: int) -> list[Explanation]:
    """Explain losses that are no sums of what loss functions return, if their functions differ."""
    words = [_describe_functions(side, step) for side in pair.sides]
    has_functions = any(
        "functions" in term for side in pair.sides for batch in _list_terms(side, step) for term in batch
    )
    if not has_functions or not all(words) or words[0] == words[1]:
        return []
    sentence = f"the loss of A is computed from {words[0]}; that of B from {words[1]}"
    return [Explanation(TERMS, sentence, confirmed=False)]


def _describe_functions(side: RecordedSide, step: int) -> str:
    """Return words for the functions of losses in the first micro-batch of a step; nothing without loss functions."""
    terms = next(iter(_list_terms(side, step)), [])
    words = []
    for term in terms[:MOST_TERMS]:
        functions = ", ".join(term.get("functions", []))
        words.append(f"the {describe_kind(term)}" + (f" (through {functions})" if functions else ""))
    return " and ".join(words)


def _pair_terms(a: Sequence[Term], b: Sequence[Term], tolerance: float) -> list[tuple[Term, Term]]:
    """Pair terms of the same kind: first with equal value and share, then with either, then in their order."""
    pairs: list[tuple[Term, Term]] = []
    for is_counterpart in (
        lambda x, y: max(abs(x.value - y.value), abs(x.share - y.share)) <= tolerance,
        lambda x, y: abs(x.value - y.value) <= tolerance,
        lambda x, y: abs(x.share - y.share) <= tolerance,
        lambda x, y: True,
    ):
        for term in a:
            unpaired = [other for other in b if all(other is not y for _, y in pairs)]
            same = [y for y in unpaired if y.settings["kind"] == term.settings["kind"] and is_counterpart(term, y)]
            if same and all(term is not x for x, _ in pairs):
                pairs.append((term, same[0]))
    return pairs


def _explain_divisor(pair: RecordPair, step: int, a: Term, b: Term) -> Explanation | None:
    """Explain a term that one script divides by the number of some positions, and the other by that of all."""
    return explain_divisor(pair, step, f"the {a.title}", (a.value, b.value))


def _explain_term(a: Term, b: Term) -> Explanation:
    """Return the reason why the shares of a term differ: its weight, a setting, or its inputs."""
    if np.isclose(a.value, b.value, rtol=1e-4):
        sentence = f"the weight of the {a.title} in the loss is {a.weight:.6g} in A and {b.weight:.6g} in B"
        if BY_SCRIPT not in (a.settings["reduction"], b.settings["reduction"]):
            return Explanation(WEIGHT, sentence)
        sentence += ", in the mean: a script reduces it itself, perhaps with a mask"
        return Explanation(WEIGHT, sentence, confirmed=False)
    for name, value in a.settings.items():
        if value != b.settings[name] and not (name == "reduction" and BY_SCRIPT in (value, b.settings[name])):
            sentence = f"the {name} of the {a.title} in the loss is {value} in A and {b.settings[name]} in B"
            return Explanation(CAUSES[name], sentence)
    sentence = f"the loss of A has {a.description}, and that of B {b.description}: compare what the functions receive"
    return Explanation(TERMS, sentence, confirmed=False)
