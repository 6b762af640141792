"""Traces of layers that a pass calls several times."""

import numpy as np
import torch
from torch import nn

from common.map.description import MOST_CALLS, RecordedCall, name_call
from torch_impl.forward_trace import ForwardTrace


class Loop(nn.Module):
    """A cell that is applied again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(MOST_CALLS + 1):
            x = self.cell(x)
        return x


def test_the_calls_of_layers_that_were_asked_for_are_recorded_and_replaced() -> None:
    model, x = Loop(), torch.ones(3, 2)
    with ForwardTrace(model) as trace:
        model(x)
    assert [*trace.calls] == ["cell", "model"] and trace.counts["cell"] == MOST_CALLS + 1
    replacement = RecordedCall(np.full((3, 2), 5, np.float32), np.full((3, 2), 7, np.float32))
    with ForwardTrace(model, {name_call("cell", 1): replacement}, ["cell"]) as trace:
        model(x)
    assert len(trace.calls) == MOST_CALLS
    first, second, third = (trace.calls[name_call("cell", count)] for count in range(3))
    np.testing.assert_array_equal(first.returned, model.cell(x).detach().numpy())
    assert second.received is not None and second.returned is not None
    assert third.received is not None and replacement.returned is not None
    np.testing.assert_array_equal(second.received, first.returned)
    expected = model.cell(torch.full((3, 2), 5.0)).detach().numpy()
    np.testing.assert_allclose(second.returned, expected, rtol=1e-6)
    np.testing.assert_array_equal(third.received, replacement.returned)


def test_a_call_that_is_not_recorded_is_replaced_too() -> None:
    model, x = Loop(), torch.ones(3, 2)
    replacement = np.full((3, 2), 7, np.float32)
    with ForwardTrace(model, {name_call("cell", MOST_CALLS): RecordedCall(None, replacement)}, ["cell"]):
        returned = model(x)
    np.testing.assert_allclose(returned.detach().numpy(), replacement, rtol=1e-6)
