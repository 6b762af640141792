"""States that a script carries from one batch to the next, such as the hidden states of a recurrent language model."""

from collections.abc import Mapping
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
        for rank, index in side.batches.list_micro_batches(number) if number in side.record.steps else ():
            if rank:
                continue
            inputs = side.batches.read_call(number, rank, index, "input")
            states.update(_pair_states(inputs, outputs) if number == step else {})
            last_call = len(side.batches.count_rows(number, rank, index)) - 1
            outputs = side.batches.read_call(number, rank, index, "output", last_call)
    return list(states)


def list_states_of_calls(side: RecordedSide, step: int) -> list[CarriedState]:
    """Return the states that the model receives in a call, and that it returned in the call before in the same step."""
    states: dict[CarriedState, None] = {}
    for rank, index in side.batches.list_micro_batches(step):
        for call in range(1, len(side.batches.count_rows(step, rank, index))):
            inputs = side.batches.read_call(step, rank, index, "input", call)
            states.update(_pair_states(inputs, side.batches.read_call(step, rank, index, "output", call - 1)))
    return list(states)


def _pair_states(inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> dict[CarriedState, None]:
    """Return the states among the inputs of a call that are outputs of the call before."""
    states: dict[CarriedState, None] = {}
    for name, array in inputs.items():
        same = [other for other, output in outputs.items() if _is_same_state(array, output)]
        states.update({CarriedState(other, name): None for other in same[:1]})
    return states


def explain_states(a: RecordedSide, b: RecordedSide, step: int) -> Explanation | None:
    """Explain a difference that begins after the first step: only one script passes the states of a batch on.

    The explanation is confirmed if the other model receives a constant state, or keeps none itself.
    """
    states = [list_carried_states(side, step) for side in (a, b)]
    keeping = [_keeps_state(side, step) for side in (a, b)]
    if not any(states):
        if {*keeping} != {True, False} or step == a.record.steps[0]:
            return None
        keeper, lacking = (a, b) if keeping[0] else (b, a)
        sentence = (
            f"step {step}: a recurrent layer of {keeper.name.upper()} begins with the state that the model has kept "
            f"from the batch before, and that of {lacking.name.upper()} with zeros"
        )
        return Explanation("state_not_carried", sentence, side=lacking.name)
    if all(states):
        return _explain_resets(a, b, step)
    lacking, carrying, keeps = (b, a, keeping[1]) if states[0] else (a, b, keeping[0])
    if keeps:
        return None
    inputs, others = (_read_first_inputs(side, step) for side in (lacking, carrying))
    sizes = {others[state.received].size for state in states[0] or states[1] if state.received in others}
    # One framework may have a state for each layer, and the other one the states of all layers in one array
    sizes |= {array.size for array in lacking.batches.read_step(step, "output").values() if not _is_constant(array)}
    constants = {array.size for array in inputs.values() if _is_constant(array)}
    is_confirmed = bool(sizes & constants) or keeps is False
    sentence = (
        f"step {step}: {carrying.name.upper()}'s model receives the state that it returned for the batch before, and "
        f"{lacking.name.upper()}'s does not{'' if is_confirmed else ', unless it keeps its state itself'}"
    )
    return Explanation("state_not_carried", sentence, is_confirmed, lacking.name)


def _explain_resets(a: RecordedSide, b: RecordedSide, step: int) -> Explanation | None:
    """Explain that only one of two scripts that pass states on sets those of some examples to zero."""
    counts = [_count_resets(side, step) for side in (a, b)]
    if all(counts) or not any(counts):
        return None
    resetting, passing = (a, b) if counts[0] else (b, a)
    sentence = (
        f"step {step}: {resetting.name.upper()}'s script sets the states of {max(counts)} examples to zero, and "
        f"{passing.name.upper()}'s passes on all that its model returned for the batch before"
    )
    return Explanation("state_not_reset", sentence, side=passing.name)


def _count_resets(side: RecordedSide, step: int) -> int:
    """Return the number of examples for which a script sets a state to zero before the first call of a step."""
    if step - 1 not in side.record.steps:
        return 0
    rank, index = [batch for batch in side.batches.list_micro_batches(step - 1) if batch[0] == 0][-1]
    last_call = len(side.batches.count_rows(step - 1, rank, index)) - 1
    inputs = _read_first_inputs(side, step)
    outputs = side.batches.read_call(step - 1, rank, index, "output", last_call)
    kept = [
        _find_equal_rows(inputs[state.received], outputs[state.returned]) for state in _pair_states(inputs, outputs)
    ]
    return max((int((~rows).sum()) for rows in kept), default=0)


def _keeps_state(side: RecordedSide, step: int) -> bool | None:
    """Check whether recurrent layers receive states that their model has kept; None if it is not recorded."""
    if side.is_torch:
        first, states = (side.get_facts(x).get("received_states", {}) for x in (side.record.steps[0], step))
        return any(has_state and not first.get(path) for path, has_state in states.items()) if states else None
    stateful = [layer["attributes"]["stateful"] for layer in side.layers if "stateful" in layer["attributes"]]
    return any(stateful) if stateful else None


def _read_first_inputs(side: RecordedSide, step: int) -> dict[str, np.ndarray]:
    """Return the inputs of the first call of the first micro-batch."""
    first = next(iter(side.batches.list_micro_batches(step)), None)
    return {} if first is None else side.batches.read_call(step, *first, "input")


def explain_reset(a: RecordedSide, b: RecordedSide, step: int) -> Explanation | None:
    """Explain that one side receives the state of the previous batch, and the other side a constant state."""
    explanation = explain_states(a, b, step)
    return explanation if explanation is not None and explanation.confirmed else None


def _is_constant(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and not np.ptp(array)


def _is_same_state(received: np.ndarray, returned: np.ndarray) -> bool:
    """Check whether a state is received as it was returned, except for examples for which it is set to zero."""
    if received.dtype.kind != "f" or received.size == 0 or _is_constant(received) or received.shape != returned.shape:
        return False
    kept, is_zero = _find_equal_rows(received, returned), _find_equal_rows(received, np.zeros_like(received))
    return bool((kept | is_zero).all() and kept.any())


def _find_equal_rows(received: np.ndarray, returned: np.ndarray) -> np.ndarray:
    """Return a mask of the rows of the last axis that are equal."""
    return np.asarray((received == returned).reshape(-1, received.shape[-1] if received.ndim else 1).all(1))
