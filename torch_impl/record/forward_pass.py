"""A forward pass of a model that a training script calls.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import numpy as np
import torch

from common.recording.record_format import LayerFacts
from common.recording.record_writer import Sample
from torch_impl.record.graph import MarkReference
from torch_impl.record.layer_states import LayerStates


@dataclass
class ModelCall:
    """A forward pass.

    Attributes:
        inputs: The inputs of the model, by name.
        outputs: The outputs of the model, by name.
        layers: The inputs and outputs of layers, as layer/PATH/input and layer/PATH/output.
        facts: The layers in the order in which the pass entered them.
        marks: The marks of the outputs in the graph.
        parts: The paths of layers that the script called instead of the model, or with its outputs.
        states: The states that recurrent layers received.
        is_training: Whether the model was in training mode.
        begins_with_part: Whether the script called the first one instead of the model.
    """

    inputs: dict[str, np.ndarray | Sample] = field(default_factory=dict)
    outputs: dict[str, np.ndarray | Sample] = field(default_factory=dict)
    layers: dict[str, np.ndarray | Sample] = field(default_factory=dict)
    facts: list[LayerFacts] = field(default_factory=list)
    marks: list[MarkReference] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    states: LayerStates = field(default_factory=LayerStates)
    is_training: bool = True
    begins_with_part: bool = False
    references: list[weakref.ref[torch.Tensor]] = field(default_factory=list)  # to inputs, and to what parts returned
