"""Tests of the losses and metrics of every task against their definitions, in a TensorFlow process."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Python
from tests.unit.reference_losses import CASES, expected

pytestmark = pytest.mark.slow

COMPUTE = """
import sys
import numpy as np
from tests.unit.reference_losses import CASES
from tf_impl.batches import to_tensors
from tf_impl.task import build_task_functions

arrays = {}
for name, (task, outputs, labels) in CASES.items():
    (batch,) = to_tensors([{"outputs": outputs, "labels": labels}])
    functions = build_task_functions(task)
    for part in ("losses", "metric"):
        arrays[f"{name}/{part}"] = getattr(functions, part)(batch["outputs"], batch["labels"]).numpy()
np.savez(sys.argv[1], **arrays)
"""


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, python: Python) -> dict[str, np.ndarray]:
    path: Path = tmp_path_factory.mktemp("losses") / "found.npz"
    python(COMPUTE, path)
    return dict(np.load(path))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_metrics_follow_their_definitions(computed: dict[str, np.ndarray], name: str) -> None:
    task, outputs, labels = CASES[name]
    for part, wanted in expected(task, outputs, labels).items():
        array = computed[f"{name}/{part}"]
        assert array.shape == (5,)
        np.testing.assert_allclose(array, wanted, rtol=1e-6 if labels.dtype == np.float32 else 1e-12, err_msg=part)
