"""Clipping of gradients in two scripts: as they declare it, or as the gradients before and after it show.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.optimizer_settings import read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.update_directions import are_directions_equal
from common.diagnose.recorded.variable_match import VariableMatch
from common.diagnose.rounding import is_close

CLOSE = 1e-3  # largest relative error of a clipping that explains the gradients, and of its limit
NORM, VALUE, PER_VARIABLE, UNKNOWN = "norm", "value", "norm of each variable", "unknown"
# Kinds of clipping by the argument of Keras's optimizers that sets them
KINDS = {"global_clipnorm": NORM, "clipnorm": PER_VARIABLE, "clipvalue": VALUE}


@dataclass(frozen=True)
class Clipping:
    """A way to clip gradients.

    Attributes:
        kind: What is limited: the norm of all gradients, each value, or the norm of each variable's gradient.
        limit: The limit, or None if it is not known.
    """

    kind: str
    limit: float | None

    def __str__(self) -> str:
        """Return words for a sentence that begins with "the gradients are"."""
        if self.kind == UNKNOWN:
            return "changed by the script"
        return f"clipped to the {self.kind}" + ("" if self.limit is None else f" {self.limit:.6g}")


def compare_clipping(stage: Stage, pair: RecordPair) -> None:
    """Add a cause to the stage if the two scripts clip in different ways."""
    if _compare_parts(stage, pair):
        return
    a, b = (find_clipping(pair, side) for side in pair.sides)
    unknown = [side for side, x in zip(pair.sides, (a, b), strict=True) if x is not None and x.kind == UNKNOWN]
    are_equal = bool(unknown) and _have_equal_directions(pair, unknown)
    pair.compares_directions = pair.compares_directions or are_equal or len(unknown) == len(pair.sides)
    if are_equal or a == b or (a is not None and b is not None and a.kind == b.kind and _are_close(a.limit, b.limit)):
        return
    words = "not changed" if unknown else "not clipped"
    descriptions = [words if clipping is None else str(clipping) for clipping in (a, b)]
    stage.add_mismatch("clipping")
    has_effect = any(side.gradients.read(step, "gradient_unclipped") for side in pair.sides for step in pair.steps)
    cause, side_name = "clipping_norm", "b"
    sentence = f"the gradients are {descriptions[0]} in A and {descriptions[1]} in B"
    if unknown:
        cause, side_name = "changed_gradients", unknown[0].name
    elif a is None or b is None:
        cause, side_name = "not_clipped", "a" if a is None else "b"
    elif a.kind != b.kind:
        odd = next((clipping for clipping in (b, a) if clipping.kind in (VALUE, PER_VARIABLE)), b)
        cause = {VALUE: "clipped_by_value", PER_VARIABLE: "clipped_per_variable"}.get(odd.kind, "clipping")
        side_name = "b" if odd is b else "a"
    stage.add_cause(cause, side_name, "clipping", sentence, confirmed=has_effect)


def _compare_parts(stage: Stage, pair: RecordPair) -> bool:
    """Add a cause if one script clips the gradients after each micro-batch. Return whether there is one."""
    facts = [[side.get_facts(step) for step in pair.steps] for side in pair.sides]
    limits = [next((x["clipped_parts"] for x in steps if "clipped_parts" in x), None) for steps in facts]
    if (limits[0] is None) == (limits[1] is None):
        return False
    index = 0 if limits[1] is None else 1
    other = find_clipping(pair, pair.sides[1 - index])
    sentence = (
        f"{'AB'[index]} clips the gradients of each micro-batch to the norm {limits[index]:.6g}, and those of the "
        f"whole step are {'not clipped' if other is None else other} in {'BA'[index]}"
    )
    stage.add_mismatch("clipping")
    stage.add_cause("clipped_before_reduction", "ab"[index], "clipping", sentence)
    return True


def list_clipped_rows(pair: RecordPair) -> list[tuple[str, VariableMatch]]:
    """Return the variables of which only one script clips the rows of a sparse gradient before it adds them.

    Each comes with the name of that script's side. Return nothing if the scripts clip in different ways anyway.
    """
    # In two scripts of Keras, other weights may be the reason that no row exceeds the limit in one of them
    steps = pair.steps if pair.a.is_torch != pair.b.is_torch else pair.steps[:1]
    rows = [{x for step in steps for x in side.get_facts(step).get("clipped_rows", [])} for side in pair.sides]
    if rows[0] or rows[1]:
        clippings = [find_clipping(pair, side) for side in pair.sides]
        kinds = {None if clipping is None else clipping.kind for clipping in clippings} - {UNKNOWN}
        if len(kinds) > 1 or NORM in kinds:  # a norm of all gradients is compared with the gradients
            return []
    both = [
        (match, bool(rows[0] & {*match.names_a}), bool(rows[1] & {*match.names_b})) for match in pair.models.variables
    ]
    return [("a" if in_a else "b", match) for match, in_a, in_b in both if in_a != in_b]


def _are_close(a: float | None, b: float | None) -> bool:
    """Check whether two limits are equal up to the rounding of gradients that show them. An unknown one may be any."""
    return a is None or b is None or math.isclose(a, b, rel_tol=CLOSE)


def find_clipping(pair: RecordPair, side: RecordedSide) -> Clipping | None:
    """Return how a script, or its Keras optimizer, clips; None if it does not, or if that had no effect."""
    facts = [side.get_facts(step) for step in pair.steps]
    norms = [(norm, "clipped_apart" in x) for x in facts if (norm := x["max_norm"]) is not None]
    if norms and np.isfinite(norms[0][0]):  # some trainers measure the norm by clipping to an infinite one
        return Clipping(PER_VARIABLE if norms[0][1] else NORM, norms[0][0])
    keras_clipping = next((group.clipping for group in read_optimizer_settings(side).values() if group.clipping), None)
    if keras_clipping is not None:
        argument, limit = keras_clipping
        return Clipping(KINDS[argument], limit)
    clippings = []
    for step in [] if side.gradients.are_changed_by_script else pair.steps:
        before, after = side.changes.read_clipping(step)
        before = {name: x for name, x in before.items() if name in after and not is_close(x, after[name], CLOSE)}
        if any(gradient.any() for gradient in before.values()):  # a loss of 0 has nothing to clip
            clipping = _explain_change(before, after)
            clippings.append(replace(clipping, limit=None) if side.gradients.are_abridged(step) else clipping)
    is_one_limit = all(_are_close(x.limit, clippings[0].limit) for x in clippings if x.kind == PER_VARIABLE)
    return next(iter(clippings), None) if is_one_limit else Clipping(UNKNOWN, None)


def _have_equal_directions(pair: RecordPair, unknown: list[RecordedSide]) -> bool:
    """Check whether the gradients that sides change in an unknown way are those that the other side computes."""
    for step in pair.steps:
        norm = 0.0
        for side in unknown:
            before, after = side.changes.read_clipping(step)
            paired = [(x, after[name]) for name, x in before.items() if name in after and x.shape == after[name].shape]
            gaps = [float(np.linalg.norm(x - y)) for x, y in paired]
            norm = float(np.linalg.norm([norm, *gaps]))
        if norm:
            return are_directions_equal(pair, step, norm)
    return False


def _explain_change(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> Clipping:
    """Return the clipping that turns the gradients `before` into the gradients `after`.

    Args:
        before: Gradients before clipping, without the gradients that clipping left unchanged.
        after: Gradients that the optimizer received.
    """
    pairs = [(array.astype(np.float64), after[name].astype(np.float64)) for name, array in before.items()]
    limit = max(float(np.abs(received).max(initial=0)) for _, received in pairs)
    if not limit:  # as in variables that the script freezes
        return Clipping(UNKNOWN, None)
    if all(is_close(np.clip(array, -limit, limit), received, CLOSE) for array, received in pairs):
        return Clipping(VALUE, limit)
    norms = [(float(np.linalg.norm(array)), float(np.linalg.norm(received))) for array, received in pairs]
    factors = [after_norm / before_norm for before_norm, after_norm in norms if before_norm]
    are_scaled = all(
        is_close(array * factor, received, CLOSE)
        for (array, received), factor in zip([pair for pair in pairs if pair[0].any()], factors, strict=True)
    )
    if not are_scaled or max(factors) > 1 + CLOSE:
        return Clipping(UNKNOWN, None)
    if np.allclose(factors, factors[0], rtol=CLOSE) and len(before) == len(after):
        return Clipping(NORM, float(np.sqrt(sum(after_norm**2 for _, after_norm in norms))))
    limit = norms[0][1]
    kept_norms = [float(np.linalg.norm(array)) for name, array in after.items() if name not in before]
    is_largest = max(kept_norms, default=0.0) <= limit * (1 + CLOSE)
    if is_largest and np.allclose([after_norm for _, after_norm in norms], limit, rtol=CLOSE):
        return Clipping(PER_VARIABLE, limit)
    return Clipping(UNKNOWN, None)
