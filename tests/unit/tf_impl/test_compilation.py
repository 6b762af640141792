"""Tests that micro-batches for a compiled model have few shapes, and that shapes are counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import MakeSplit, Python

pytestmark = pytest.mark.slow

COUNT = """
import json, sys
import numpy as np
from tf_impl.batches import to_tensors
from tf_impl.compilation import report_compilations

arrays = np.load(sys.argv[1])
parts = {}
for key in arrays:
    number, _, name = key.partition("/")
    parts.setdefault(number, {})[name] = arrays[key]
shapes = [[list(part["input_ids"].shape) for part in to_tensors([part])] for part in parts.values()]
none = report_compilations()
rounded = [[part["input_ids"].shape[0] for part in to_tensors([part], compiled=True)] for part in parts.values()]
print(json.dumps([shapes, none, rounded, report_compilations()]))
"""


def test_shapes_are_rounded_up_and_counted(make_split: MakeSplit, tmp_path: Path, keras_python: Python) -> None:
    lengths = [[20, 30, 15], [21, 30, 17], [22, 31, 16], [40, 40, 40]]
    parts = [make_split(sizes).gather_unpadded(np.arange(3)) for sizes in lengths]
    arrays: dict[str, Any] = {f"{i}/{name}": array for i, part in enumerate(parts) for name, array in part.items()}
    np.savez(tmp_path / "parts.npz", **arrays)
    shapes, none, rounded, counted = json.loads(keras_python(COUNT, tmp_path / "parts.npz"))
    assert shapes == [[[sum(sizes)]] for sizes in lengths]
    assert none == {"compilations": 0}
    assert rounded == [[80], [80], [80], [128]]
    assert counted == {"compilations": 2}
