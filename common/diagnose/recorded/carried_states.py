"""States that a script carries from one batch to the next, such as the hidden states of a recurrent language model."""

from typing import NamedTuple

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.recorded_side import RecordedSide


class CarriedState(NamedTuple):
    """A state that the model returns, and receives with the next micro-batch.

    Attributes:
        returned: The name of the output.
        received: The name of the input.
    """

    returned: str
    received: str


def list_carried_states(side: RecordedSide, step: int) -> list[CarriedState]:
    """Return the states that the first process receives in a step, and that it returned one micro-batch earlier."""
    states: dict[CarriedState, None] = {}
    outputs: dict[str, np.ndarray] = {}
    for number in (step - 1, step):
        for rank, place in side.list_micro_batches(number) if number in side.record.steps else ():
            if rank:
                continue
            inputs = side.read_part(number, rank, place, "input")
            for name, array in inputs.items() if number == step else ():
                same = [other for other, output in outputs.items() if _is_same_state(array, output)]
                states.update({CarriedState(other, name): None for other in same[:1]})
            outputs = side.read_part(number, rank, place, "output")
    return list(states)


def explain_states(a: RecordedSide, b: RecordedSide, step: int) -> Explanation | None:
    """Explain a difference that begins after the first step: only one script passes the states of a batch on."""
    has_states = [bool(list_carried_states(side, step)) for side in (a, b)]
    if has_states[0] == has_states[1]:
        return None
    side, other = ("b", "a") if has_states[0] else ("a", "b")
    sentence = (
        f"step {step}: {other.upper()}'s model receives the state that it returned for the batch before, and "
        f"{side.upper()}'s does not"
    )
    return Explanation("state_not_carried", sentence, side=side)


def explain_reset(a: RecordedSide, b: RecordedSide, step: int) -> Explanation | None:
    """Explain batches of which one comes with the state of the batch before, and the other one with a constant state.

    A side without an input for the state may keep it in its model, which does not show here.
    """
    explanation = explain_states(a, b, step)
    if explanation is None:
        return None
    lacking, carrying = (b, a) if explanation.side == "b" else (a, b)
    inputs, others = (side.read_batch(step, "input") for side in (lacking, carrying))
    sizes = {others[state.received].size for state in list_carried_states(carrying, step) if state.received in others}
    constants = {array.size for array in inputs.values() if array.dtype.kind == "f" and not np.ptp(array)}
    return explanation if sizes & constants else None


def _is_same_state(received: np.ndarray, returned: np.ndarray) -> bool:
    return received.dtype.kind == "f" and np.ptp(received) > 0 and np.array_equal(received, returned)
