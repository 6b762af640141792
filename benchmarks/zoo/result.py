"""The result of a pair: whether it is paired, proven and trained, and what differs. A JSON file keeps it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class ZooResult:
    """The result of a pair.

    Attributes:
        paired: Whether every variable found its counterpart without a map file.
        proven: Whether both models are proven to compute the same.
        differences: Sentences that explain why the models differ, the most useful first.
        notes: Sentences about differences that are no errors, such as unused variables.
        skipped: The reason why the pair was not tried, such as a missing library; empty for a tried pair.
        proof_difference: The largest relative difference of the outputs in the proof.
        losses: The largest relative difference of the losses of the steps; None if the pair was not trained.
        gradient_norms: The largest relative difference of the gradient norms.
        seconds: The time of the proof and of both training runs.
    """

    paired: bool = False
    proven: bool = False
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str = ""
    proof_difference: float | None = None
    losses: float | None = None
    gradient_norms: float | None = None
    seconds: float = 0.0


def read_result(path: Path) -> ZooResult | None:
    """Return the result of an earlier run, or None if there is none."""
    return ZooResult(**json.loads(path.read_text())) if path.exists() else None


def write_result(path: Path, result: ZooResult) -> None:
    """Write a result, so that a later run need not try the pair again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(result), indent=1))
