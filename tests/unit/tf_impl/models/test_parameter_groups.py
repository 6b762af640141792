"""Tests of frozen parameters. TensorFlow runs in a separate process."""

import json
from pathlib import Path

import pytest

from common.config.compose import parse_config, save_config
from tests.conftest import Compose, Python

pytestmark = pytest.mark.slow

FREEZE = """
import json
import sys
from pathlib import Path
import keras
from common.config.compose import load_config
from common.errors import UserError
from common.map.transformation import parse_transformation
from tf_impl.models.layout import NamedParameter, TransformedParameter
from tf_impl.models.parameter_groups import freeze_parameters

model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4, name="a"), keras.layers.Dense(2, name="b")])
a, b = model.layers
model.named_parameters = [
    NamedParameter("0.weight", a.kernel, (4, 3), (4, 3)),
    NamedParameter("0.bias", a.bias, (4,), None),
    NamedParameter("1.weight", b.kernel, (2, 4), (2, 4)),
    TransformedParameter(b.bias, parse_transformation("1.bias, 2.bias"), {"1.bias": (2,), "2.bias": (2,)}),
]
results = []
for path in sys.argv[1:]:
    try:
        freeze_parameters(model, load_config(Path(path)))
        results.append([variable.path for variable in model.trainable_variables])
    except UserError as error:
        results.append(str(error))
model.named_parameters = [
    *model.named_parameters[:3],
    TransformedParameter(b.bias, parse_transformation("1.bias[0:2]"), {"1.bias": (6,)}),
]
try:
    freeze_parameters(model, load_config(Path(sys.argv[-1])))
except UserError as error:
    results.append(str(error))
shapes = {"1.bias": (2,), "2.bias": (2,)}
model.named_parameters[-1] = TransformedParameter(b.bias, parse_transformation("1.bias + 2.bias"), shapes)
for path in (sys.argv[1], sys.argv[-1]):  # 2.bias is not trained
    freeze_parameters(model, load_config(Path(path)))
print(json.dumps(results))
"""


def test_frozen_variables_are_not_trained(composed: Compose, tmp_path: Path, keras_python: Python) -> None:
    groups = [
        "[{match: '1.bias', weight_decay: 0}]",
        "[{match: '1.bias', weight_decay: 0.01}, {match: '0.*', frozen: true}]",
    ]
    paths = [tmp_path / f"{number}.yaml" for number in range(3)]
    for path, value in zip(paths, [*groups, "[]"], strict=True):
        clipping = ("optimizer.clip_norm=1", "optimizer.max_grad_norm=null") if value == "[]" else ()
        save_config(parse_config(composed(f"optimizer.groups={value}", *clipping)), path)
    divided, trained, clipped, clipped_part = json.loads(keras_python(FREEZE, *paths))
    assert divided.startswith(
        "optimizer.groups: 1.bias and 2.bias are in different groups, but TensorFlow's sequential/b"
    )
    assert trained == ["sequential/b/kernel", "sequential/b/bias"]
    assert clipped.startswith("optimizer.clip_norm=1: TensorFlow's sequential/b/bias holds 1.bias and 2.bias together")
    assert clipped_part.startswith(
        "optimizer.clip_norm=1: TensorFlow's sequential/b/bias holds only a part of 1.bias, which has one norm"
    )
