"""Tests of the optimizer and its slots against PyTorch's formulas. TensorFlow runs in a separate process."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from common.config.compose import parse_config, save_config
from common.config.optimizers import OPTIMIZERS
from tests.composition import compose_quickly
from tests.conftest import Python
from tests.unit.reference_optimizer import (
    AHEAD,
    CASES,
    FAULTS,
    NATIVE_KEYS,
    SHAPES,
    TOLERANCES,
    Arrays,
    EpsilonHat,
    Reference,
    changed,
    errors,
    expected,
)

pytestmark = pytest.mark.slow  # TensorFlow traces two steps of each case

TRAIN = """
import sys
from pathlib import Path
from unittest.mock import patch
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from common.training.state import Position
from tests.unit.reference_optimizer import AHEAD, HALF, SHAPES, STEPS, batches, initial_parameters
from tf_impl.models.layout import NamedParameter
from tf_impl import optimizer
from tf_impl.optimizer import SCALARS, Optimizer

class StockAdam(Optimizer):
    def __init__(self, config, model):
        super().__init__(config, model)
        self.stock = keras.optimizers.Adam(config.optimizer.learning_rate)
        self.stock.build(model.trainable_variables)

    def densify(self, gradients, keep_large_sparse=False):
        return gradients

    def update(self, gradients, scalars):
        self.stock.apply(gradients)
        return tf.linalg.global_norm(gradients)

class Training:
    def __init__(self, config, parameters, kind, sparse=False):
        self.sparse = sparse
        keras.config.set_dtype_policy(config.train.precision)
        embedding, dense = keras.layers.Embedding(*SHAPES["embedding.weight"]), keras.layers.Dense(2)
        self.model = keras.Sequential([keras.Input([None], dtype="int32"), embedding, dense])
        variables = [embedding.embeddings, dense.kernel, dense.bias]
        self.model.named_parameters = [
            NamedParameter(name, variable, SHAPES[name], SHAPES[name] if name == "dense.weight" else None)
            for name, variable in zip(SHAPES, variables)
        ]
        self.load(parameters)
        self.optimizer = kind(config, self.model)
        batch = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None, None], tf.float64)]
        self.step = tf.function(self._step, input_signature=[*batch, SCALARS])

    def _step(self, ids, upstream, scalars):
        with tf.GradientTape() as tape:
            output = self.model(ids)
            loss = tf.reduce_sum(output * tf.cast(upstream, output.dtype))
        gradients = tape.gradient(loss, self.optimizer.parameters)
        assert isinstance(gradients[0], tf.IndexedSlices) and gradients[0].dtype == self.model.dtype
        gradients = self.optimizer.densify(gradients, keep_large_sparse=self.sparse)
        assert isinstance(gradients[0], tf.IndexedSlices) or not self.sparse
        return self.optimizer.update(gradients, scalars)

    def train(self, batches, first):
        return [self.step(*batch, self.optimizer.compute_scalars(first + index)) for index, batch in enumerate(batches)]

    def load(self, parameters):
        for parameter in self.model.named_parameters:
            parameter.variable.assign(parameter.to_keras(parameters))

    def parameters(self):
        arrays = {}
        for parameter in self.model.named_parameters:
            parameter.to_torch(parameter.variable.numpy(), arrays)
        return arrays

def train(path):
    config, data = load_config(path), batches(repeated=path.stem != "distinct")
    kind = StockAdam if path.stem == "repeated" else Optimizer
    training = Training(config, initial_parameters(), kind)
    zeros = training.optimizer.slots()
    norms = training.train(data[:HALF], 1)
    parameters, slots = training.parameters(), training.optimizer.slots()
    norms += training.train(data[HALF:], HALF + 1)
    results = {"zeros": zeros, "saved": slots}
    results["whole"] = {"norms": norms, **training.parameters(), **training.optimizer.slots()}
    if "clipped" in path.stem:
        sparse = Training(config, initial_parameters(), kind, sparse=True)
        sparse_norms = sparse.train(data, 1)
        results["sparse"] = {"norms": sparse_norms, **sparse.parameters(), **sparse.optimizer.slots()}
    for part, step in (("resumed", HALF), ("ahead", HALF + AHEAD)):
        training.load(parameters)
        training.optimizer.load(slots, Position(step=step, plan_position=HALF))
        results[f"{part} from"] = training.optimizer.slots()
        after = norms[:HALF] + training.train(data[HALF:], HALF + 1)
        results[part] = {"norms": after, **training.parameters(), **training.optimizer.slots()}
    flat = {f"{part}/{name}": array for part, arrays in results.items() for name, array in arrays.items()}
    np.savez(path.with_suffix(".npz"), **flat)

with patch.object(optimizer, "LARGE_EMBEDDING", 1):  # the embedding here is large
    for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
        train(path)
"""

WARM_UP = ("schedule=linear", "schedule.warmup_steps=5", "schedule.total_steps=25")
NATIVE = {  # float32 only: dividing out the learning rate, which is in the slots of Keras's SGD, rounds in float64
    f"float32, native {name}": (f"optimizer={name}", "optimizer.semantics=native", *NATIVE_KEYS.get(name, ()), *WARM_UP)
    for name in OPTIMIZERS
    if name != "nadam"  # the frameworks round the product of its momentums, which is computed again on resume
}
ADAM = ("optimizer=adam", "optimizer.learning_rate=0.02", "optimizer.epsilon=1e-7", "optimizer.max_grad_norm=null")
STOCK = {  # cases that are compared with the formulas of Keras
    "distinct": (*ADAM, *WARM_UP, "train.precision=float64", "optimizer.semantics=native"),
    "repeated": (*ADAM, "schedule=constant", "schedule.total_steps=25", "train.precision=float64"),
}
Trained = dict[str, dict[str, Arrays]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, keras_python: Python) -> Trained:
    """Return the arrays of each case by the kind of training."""
    folder = tmp_path_factory.mktemp("optimizer")
    paths: dict[str, Path] = {}
    for case, overrides in {**CASES, **NATIVE, **STOCK}.items():
        paths[case] = folder / f"{case}.yaml"
        save_config(parse_config(compose_quickly(*overrides)), paths[case])
    keras_python(TRAIN, folder)
    results: Trained = {}
    for case, path in paths.items():
        results[case] = defaultdict(dict)
        for key, array in np.load(path.with_suffix(".npz")).items():
            part, _, name = key.partition("/")
            results[case][part][name] = array
    return results


@pytest.mark.parametrize("case", CASES)
def test_update_follows_the_formulas_of_pytorch(trained: Trained, case: str) -> None:
    config = parse_config(compose_quickly(*CASES[case]))
    differences = errors(trained[case]["whole"], expected(config))
    assert max(differences.values()) <= TOLERANCES[config.train.precision], differences


@pytest.mark.parametrize("case", [case for case in CASES if "clipped" in case])
def test_sparse_gradient_makes_the_same_update(trained: Trained, case: str) -> None:
    config = parse_config(compose_quickly(*CASES[case]))
    differences = errors(trained[case]["sparse"], expected(config))
    assert max(differences.values()) <= TOLERANCES[config.train.precision], differences


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize(("name", "kind", "override"), FAULTS)
def test_faults_exceed_the_tolerance(
    trained: Trained, precision: str, name: str, kind: type[Reference], override: str
) -> None:
    case = f"{precision}, {name}, clipped with warm-up"
    wrong = parse_config(changed(compose_quickly(*CASES[case]), override))
    assert max(errors(trained[case]["whole"], expected(wrong, kind=kind)).values()) > 2 * TOLERANCES[precision]


@pytest.mark.parametrize("case", [*CASES, *NATIVE])
def test_resumed_run_equals_the_uninterrupted_one(trained: Trained, case: str) -> None:
    assert_same(trained[case]["resumed from"], trained[case]["saved"])
    assert_same(trained[case]["resumed"], trained[case]["whole"])


def assert_same(arrays: Arrays, expected: Arrays) -> None:
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype and np.array_equal(arrays[name], array), name


@pytest.mark.parametrize("case", CASES)
def test_bias_correction_counts_extra_updates(trained: Trained, case: str) -> None:
    config = parse_config(compose_quickly(*CASES[case]))
    differences = errors(trained[case]["ahead"], expected(config, AHEAD))
    assert max(differences.values()) <= TOLERANCES[config.train.precision], differences
    if "adam" in case:
        assert max(errors(trained[case]["ahead"], expected(config)).values()) > 1e-4


@pytest.mark.parametrize("case", [*CASES, *NATIVE])
def test_slots_have_their_initial_values_before_the_first_update(trained: Trained, case: str) -> None:
    zeros, whole = trained[case]["zeros"], trained[case]["whole"]
    assert zeros.keys() == {name for name in whole if name.partition(".")[0] not in ("norms", "embedding", "dense")}
    for name, array in zeros.items():
        assert array.shape == whole[name].shape and np.all(
            array == (0.1 if "keras adagrad" in case or "native adagrad" in case else 0)
        ), name


def test_native_adam_is_that_of_keras(trained: Trained) -> None:
    """Keras adds epsilon before the bias correction, and rounds constants to float32."""
    config, arrays = parse_config(compose_quickly(*STOCK["distinct"])), trained["distinct"]["whole"]
    as_keras = errors(arrays, expected(config, kind=EpsilonHat, repeated=False))
    assert max(as_keras.values()) < 2e-5, as_keras
    assert max(errors(arrays, expected(config, repeated=False)).values()) > 1e-4


def test_keras_adam_squares_repeated_rows_one_by_one(trained: Trained) -> None:
    """This is why `densify` exists."""
    arrays, correct = (
        trained["repeated"]["whole"],
        expected(parse_config(compose_quickly(*STOCK["repeated"])), kind=EpsilonHat),
    )
    differences = errors({name: arrays[name] for name in SHAPES}, {name: correct[name] for name in SHAPES})
    assert differences["embedding.weight"] > 1e-2, differences


DECAY = """
import json
import sys
from pathlib import Path
import keras
import numpy as np
import tensorflow as tf
from common.config.compose import load_config
from tf_impl.models.layout import NamedParameter
from tf_impl.optimizer import SCALARS, Optimizer

def is_exact(config):
    dense = keras.layers.Dense(5)
    model = keras.Sequential([keras.Input([3]), dense])
    model.named_parameters = [NamedParameter(x.name, x, x.shape, None) for x in (dense.kernel, dense.bias)]
    expected = dense.kernel.numpy()
    optimizer = Optimizer(config, model)
    step = tf.function(lambda scalars: optimizer.update([tf.zeros([3, 5]), tf.zeros([5])], scalars), [SCALARS])
    for index in range(1, 101):
        step(optimizer.compute_scalars(index))
        expected *= np.float32(1 - config.optimizer.learning_rate * config.optimizer.weight_decay)
    return np.array_equal(dense.kernel.numpy(), expected)

keras.utils.set_random_seed(0)  # one update in 100,000 is rounded twice, to the next number
print(json.dumps([is_exact(load_config(Path(path))) for path in sys.argv[1:]]))
"""


def test_weight_decay_has_the_rounded_factor_of_pytorch(tmp_path: Path, keras_python: Python) -> None:
    """100 updates are exact to the last digit, even if workers share the parameters. Rounding errors would add up."""
    settings = ("optimizer=adamw", "optimizer.learning_rate=1e-3", "optimizer.weight_decay=0.01", "schedule=constant")
    paths = {strategy: tmp_path / f"{strategy}.yaml" for strategy in ("single", "parameter_server")}
    for strategy, path in paths.items():
        save_config(parse_config(compose_quickly(f"strategy={strategy}", *settings)), path)
    assert keras_python(DECAY, *paths.values()) == "[true, true]\n"


PLACES = """
import json
import sys
from pathlib import Path
import keras
import tensorflow as tf
from common.config.compose import load_config
from tf_impl.models.layout import NamedParameter
from tf_impl.optimizer import SCALARS, Optimizer

with tf.device("CPU:1"):
    model = keras.Sequential([keras.Input([None], dtype="int32"), keras.layers.Embedding(50, 4)])
    model.named_parameters = [NamedParameter("weight", model.weights[0], (50, 4), None)]
    optimizer = Optimizer(load_config(Path(sys.argv[1])), model)

@tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32), SCALARS])
def step(values, rows, scalars):
    with tf.device("CPU:0"):
        return optimizer.update([tf.IndexedSlices(values, rows, [50, 4])], scalars)

print(json.dumps([
    [operation.type, *(x.op.device[-1:] or x.op.type for x in operation.inputs if x.shape == [50, 4])]
    for operation in step.get_concrete_function().graph.get_operations()
    if operation.type.startswith("ResourceApply")
]))
"""


def test_parameter_servers_compute_arrays_of_the_size_of_a_parameter(tmp_path: Path, keras_python: Python) -> None:
    """Workers send only rows of an embedding's gradient."""
    save_config(parse_config(compose_quickly("strategy=parameter_server", "optimizer=adamw")), tmp_path / "config.yaml")
    placed = json.loads(keras_python(PLACES, tmp_path / "config.yaml"))
    # ReadVariableOp runs on the device of its variable.
    assert placed == [["ResourceApplyGradientDescent", "ReadVariableOp"], ["ResourceApplyAdam", "1"]]
