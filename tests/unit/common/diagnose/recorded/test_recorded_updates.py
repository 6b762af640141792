"""Tests of the updates of recorded optimizers, computed again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.recorded_updates import orient_gradients
from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_format import OptimizerFacts, StepFacts
from tests.unit.common.recording.numpy_script import Arrays, NumpyScript

LIMIT = 0.1
GRADIENTS = {"rows": np.array([3.0, -4.0]), "weight": np.array([3.0, -4.0])}


@pytest.mark.parametrize(
    ("kind", "expected"), [("clipvalue", [1, -1]), ("clipnorm", [0.6, -0.8]), ("global_clipnorm", [3, -4])]
)
def test_gradients_that_are_recorded_as_clipped_are_not_clipped_again(kind: str, expected: list[float]) -> None:
    """The norm of all is not known if one of them is recorded as clipped."""
    settings: Any = dict.fromkeys(GRADIENTS, SimpleNamespace(clipping=(kind, 1.0), maximize=False))
    oriented = orient_gradients(GRADIENTS, settings, known={"rows"})
    np.testing.assert_array_equal(oriented["rows"], GRADIENTS["rows"])
    np.testing.assert_allclose(oriented["weight"], expected)


class ClippedBeforeAdding(NumpyScript):
    """A script of Keras that clips a sparse gradient before it adds repeated rows: the norm is larger than the limit.

    The record has the factors of the clipping.
    """

    def clip(self, gradients: Arrays) -> Arrays:
        factors = {name: min(1.0, LIMIT / float(np.linalg.norm(x))) for name, x in gradients.items()}
        return {name: x * factors[name] * (2 if name == "fc1.weight" else 1) for name, x in gradients.items()}

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        return {**super()._build_facts(step, losses), "max_norm": None}

    def _describe_optimizer(self) -> OptimizerFacts:
        facts = super()._describe_optimizer()
        facts["groups"][0]["hyperparameters"]["clipnorm"] = LIMIT
        return facts


def test_an_update_by_gradients_with_known_factors_is_the_optimizer_s(tmp_path: Path) -> None:
    record = ClippedBeforeAdding("tensorflow", "sgd", decay=0.0, max_norm=1.0).write(tmp_path)
    diagnosis = diagnose_records(record, record)
    (stage,) = [stage for stage in diagnosis.stages if stage.name == "optimizer"]
    assert (stage.verdict, stage.note) == ("equal", "")
