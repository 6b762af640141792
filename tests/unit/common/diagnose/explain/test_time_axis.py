"""Recurrent layers that take the examples for the time."""

import numpy as np
import pytest
import torch

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.time_axis import compare_time_axes

X = np.random.default_rng(0).standard_normal((3, 5, 2))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_missing_batch_first_is_named(kind: type[torch.nn.Module], is_swapped: bool) -> None:
    """Compare the last state, which the code of one side takes from all states, and all states."""
    wrong = kind(2, 4).double()
    right = kind(2, 4, batch_first=True).double()
    right.load_state_dict(wrong.state_dict())
    weights = {f"rnn.{name}": value.numpy() for name, value in wrong.state_dict().items()}
    results = [model(torch.from_numpy(X))[0].detach().numpy() for model in (wrong, right)]
    a, b = reversed(results) if is_swapped else results
    outputs = [LayerOutput("rnn", a, X, X)]
    (explanation,) = explain_code(CodeSection("input of head", "head", a[:, -1], b[:, -1], outputs, {}, weights))
    assert explanation.cause == "time_axis"
    side = "B" if is_swapped else "A"
    assert explanation.sentence.startswith(f"rnn: {side}'s layer takes axis 0 for the time, which has the examples")
    assert compare_time_axes("rnn", weights, X, (a, b)) is not None
    assert (
        compare_time_axes("rnn", weights, X, (a, a)) is None and compare_time_axes("head", weights, X, (a, b)) is None
    )
    assert compare_time_axes("rnn", weights, X, (a, b**2)) is None
