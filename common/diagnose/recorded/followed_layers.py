"""The inputs of the layers in a followed record, for the layers of the following script.

A script follows a record if it takes the record's initial weights and batches. Each of its layers also computes on the
input that its counterpart in the record received. It then shows its own part of a difference, without the differences
of earlier layers.
"""

from collections.abc import Sequence

import numpy as np

from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import convert_calls
from common.diagnose.observation import Observation
from common.diagnose.recorded.recorded_side import RecordedSide
from common.map.description import RecordedCall


class FollowedLayers:
    """The calls of a record's layers in the first micro-batch of its first step."""

    def __init__(self, side: RecordedSide, layers: Sequence[LayerMatch]) -> None:
        """Read the calls.

        Args:
            side: The record as side "a".
            layers: Pairs of a layer of the record and a layer of the script.
        """
        self._matches = {match.path_b: match for match in layers if not (match.entries_a or match.entries_b)}
        calls = side.read_layer_calls(side.record.steps[0])
        self._observation = Observation([], [], calls, side.unflattened_shapes, {})

    def convert_input(
        self, path: str, call: RecordedCall, unflattened_shape: Sequence[int] | None
    ) -> np.ndarray | None:
        """Return the input of a layer's counterpart in the layout of the layer; None: unknown.

        Args:
            path: The path of the layer in the script's model.
            call: The input and the output of the layer.
            unflattened_shape: The shape of an example before the script's model flattened it for the layer.
        """
        match = self._matches.get(path)
        if match is None:
            return None
        shapes = {path: tuple(unflattened_shape)} if unflattened_shape else {}
        observation = Observation([], [], {path: call}, shapes, {})
        converted = convert_calls([match], self._observation, observation).get(path)
        return None if converted is None else converted.received
