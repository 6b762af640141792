"""Losses of several backward passes through one forward pass, some of which the other script does not send there.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math
from itertools import combinations

from common.diagnose.findings import Explanation
from common.diagnose.recorded.losses.loss_formulas import CLOSE
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

MOST_PASSES = 8  # more have too many sums


def explain_passes(pair: RecordPair, step: int, losses: tuple[float, float]) -> Explanation | None:
    """Explain losses by backward passes that only one script computes; None if they do not explain them.

    Args:
        pair: The records.
        step: The step.
        losses: The losses of A and B.
    """
    for index, side in enumerate(pair.sides):
        passes, loss = _list_losses(side, step), losses[1 - index]
        for count in range(1, len(passes)):
            for kept in combinations(range(len(passes)), count):
                if math.isclose(sum(passes[x] for x in kept), loss, rel_tol=CLOSE[pair.precision]):
                    return _explain(step, index, [x for number, x in enumerate(passes) if number not in kept], loss)
    return None


def _explain(step: int, index: int, added: list[float], loss: float) -> Explanation:
    """Explain the added losses of the side with an index. loss: the loss of the other side."""
    name, words = "AB"[index], " and ".join(f"{x:.6g}" for x in added)
    sentence = (
        f"step {step}: the model of {'BA'[index]} gets its gradients from the loss {loss:.6g}, and that of {name} "
        f"also from {words}, in another backward pass: detach the outputs from which that loss is computed"
    )
    return Explanation("added_backward_pass", sentence, side=name.lower())


def _list_losses(side: RecordedSide, step: int) -> list[float]:
    """Return the losses of the backward passes of a step; none if each forward pass has one, or if they are many."""
    passes = [losses for facts in side.record.get_step_facts(step) for losses in facts.get("pass_losses", []) if losses]
    return passes[0] if len(passes) == 1 and len(passes[0]) <= MOST_PASSES else []
