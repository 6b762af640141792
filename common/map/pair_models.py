"""Two factories to their pairing and its proof."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.map.description import ModelDescription
from common.map.input_specs import InputSpec, draw_inputs
from common.map.map_file import read_map
from common.map.pair_variables import ParameterMap, pair_variables
from common.map.proof import Proof, prove_models, receive_all
from common.map.side import Side


@dataclass(frozen=True)
class PairingRequest:
    """What to pair. torch, tf: factories as module:function. map: a map file. arrays: the inputs, else drawn ones."""

    torch: str
    tf: str
    inputs: Mapping[str, InputSpec]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    map: Path | None = None
    seed: int = 0
    arrays: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class PairedModels:
    """drawn: PyTorch's weights as its factory draws them. proof: None where something is not matched."""

    torch_description: ModelDescription
    keras_description: ModelDescription
    parameter_map: ParameterMap
    initial_weights: dict[str, np.ndarray]
    proof: Proof | None

    @property
    def proven(self) -> bool:
        """Whether the models are the same."""
        return self.proof is not None and not self.proof.errors


def describe_models(sides: Mapping[str, Side], job: PairingRequest) -> dict[str, ModelDescription]:
    """Build the models and describe them. sides: one or both of `torch` and `tf`. Raises UserError."""
    arrays = draw_inputs(job.inputs, job.seed) if job.arrays is None else job.arrays
    for name, side in sides.items():
        factory = getattr(job, name)
        side.send("build", factory=factory, arguments=job.arguments, inputs=job.inputs, arrays=arrays, seed=job.seed)
    receive_all(*sides.values())
    for side in sides.values():
        side.send("describe")
    return dict(zip(sides, receive_all(*sides.values()), strict=True))


def pair_models(torch: Side, keras: Side, job: PairingRequest) -> PairedModels:
    """Build both models, pair their variables and prove that they compute the same. Raises UserError."""
    ours, theirs = describe_models({"torch": torch, "tf": keras}, job).values()
    given = read_map(job.map, ours, theirs) if job.map else {}
    parameter_map = pair_variables(ours, theirs, given)
    complete = not parameter_map.unmatched_torch and not parameter_map.unmatched_keras
    drawn = torch.call("weights")
    return PairedModels(
        ours,
        theirs,
        parameter_map,
        drawn,
        prove_models(torch, keras, ours, theirs, parameter_map, job.seed) if complete else None,
    )
