"""Examples with three outputs: a class for each pixel, a class and a number for each example."""

from dataclasses import asdict, replace

import numpy as np

from common.config.task_kinds import MultiOutputSettings
from common.data.splits.array_column import Column
from common.data.splits.multi_output_split import MultiOutputSplit, split_outputs
from tests.unit.reference_losses import CLASSIFICATION, REGRESSION

COUNT = 11
stream = np.random.default_rng(5)
PIXELS = stream.integers(0, 3, (COUNT, 2, 4)).astype(np.int32)
PIXELS[stream.random(PIXELS.shape) < np.linspace(0, 1, COUNT)[:, None, None]] = -100  # the last example has none
CLASSES = stream.integers(0, 4, COUNT).astype(np.int32)
CLASSES[::3] = -100
NUMBERS = stream.standard_normal(COUNT).astype(np.float32)
WEIGHTS = [0.5, 2.0, 1.0, 3.0]
OUTPUTS = stream.standard_normal((COUNT, 2 * 4 * 3 + 4 + 1))
TASK = MultiOutputSettings(
    "multi_output",
    {
        "mask": {"output": "mask", "label": "mask", "weight": 0.3, **asdict(CLASSIFICATION)},
        "group": {"output": 1, "label": "y", "weight": 1, **asdict(replace(CLASSIFICATION, class_weights=WEIGHTS))},
        "age": {"output": "age", "label": "age", "weight": 2.5, **asdict(REGRESSION)},
    },
)
LAYOUTS = [
    {"output": [2, 4, 3], "labels": [2, 4], "is_integer": True},
    {"output": [1, 4], "labels": [1], "is_integer": True},
    {"output": [1], "labels": [1], "is_integer": False},
]
COLUMNS = {"mask": Column(PIXELS), "y": Column(CLASSES), "age": Column(NUMBERS)}
SPLIT = MultiOutputSplit({"x": Column(OUTPUTS)}, Column(PIXELS), None, TASK, split_outputs(TASK, COLUMNS))
