"""Two factories to their pairing and its proof."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.map.description import Description
from common.map.inputs import Input, draw_inputs
from common.map.map_file import read_map
from common.map.pairing import Pairing, pair
from common.map.proof import Proof, prove, received
from common.map.side import Side


@dataclass(frozen=True)
class Job:
    """What to pair. torch, tf: factories as module:function. map: a map file. arrays: the inputs, else drawn ones."""

    torch: str
    tf: str
    inputs: Mapping[str, Input]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    map: Path | None = None
    seed: int = 0
    arrays: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class Match:
    """drawn: PyTorch's weights as its factory draws them. proof: None where something is not matched."""

    torch: Description
    keras: Description
    pairing: Pairing
    drawn: dict[str, np.ndarray]
    proof: Proof | None

    @property
    def proven(self) -> bool:
        """Whether the models are the same."""
        return self.proof is not None and not self.proof.errors


def describe(sides: Mapping[str, Side], job: Job) -> dict[str, Description]:
    """Build the models and describe them. sides: one or both of `torch` and `tf`. Raises UserError."""
    arrays = draw_inputs(job.inputs, job.seed) if job.arrays is None else job.arrays
    for name, side in sides.items():
        factory = getattr(job, name)
        side.send("build", factory=factory, arguments=job.arguments, inputs=job.inputs, arrays=arrays, seed=job.seed)
    received(*sides.values())
    for side in sides.values():
        side.send("describe")
    return dict(zip(sides, received(*sides.values()), strict=True))


def match(torch: Side, keras: Side, job: Job) -> Match:
    """Build both models, pair their variables and prove that they compute the same. Raises UserError."""
    ours, theirs = describe({"torch": torch, "tf": keras}, job).values()
    given = read_map(job.map, ours, theirs) if job.map else {}
    pairing = pair(ours, theirs, given)
    complete = not pairing.unmatched_torch and not pairing.unmatched_keras
    drawn = torch.call("weights")
    return Match(
        ours, theirs, pairing, drawn, prove(torch, keras, ours, theirs, pairing, job.seed) if complete else None
    )
