"""Tests that the predictions of several outputs are split by the shapes of their labels."""

from dataclasses import asdict

import numpy as np
import pytest

from common.config.task_kinds import MultiOutputSettings
from common.metrics.output_predictions import split_predictions
from common.metrics.predictions import Predictions
from common.models.task_outputs import OutputLayout
from tests.unit.reference_losses import CLASSIFICATION

TASK = MultiOutputSettings(
    "multi_output",
    {name: {"output": name, "label": name, "weight": 1, **asdict(CLASSIFICATION)} for name in ("shares", "group")},
)
LAYOUTS = [OutputLayout([3], [3], False), OutputLayout([1, 4], [1], True)]


@pytest.mark.parametrize(("kind", "sizes"), [("outputs", (3, 4)), ("classes", (1, 1))])
def test_labels_that_are_shares_of_classes(kind: str, sizes: tuple[int, int]) -> None:
    labels, outputs = np.arange(8.0).reshape(2, 4), np.arange(2.0 * sum(sizes)).reshape(2, -1)
    predictions = split_predictions(Predictions(kind, np.arange(2), labels, outputs), TASK, LAYOUTS)
    shares, group = predictions["shares"], predictions["group"]
    np.testing.assert_array_equal(shares.labels, labels[:, :3])
    np.testing.assert_array_equal(group.labels, labels[:, 3])
    assert (shares.kind, group.kind, group.labels.dtype) == (kind, kind, np.int32)
    np.testing.assert_array_equal(shares.outputs, outputs[:, : sizes[0]])
    np.testing.assert_array_equal(group.outputs.reshape(2, -1), outputs[:, sizes[0] :])
