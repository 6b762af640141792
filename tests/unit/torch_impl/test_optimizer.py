"""Tests of the optimizer against PyTorch's documented formulas, and tests of its slots."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from common.config.compose import parse_config
from common.config.optimizers import OPTIMIZERS
from common.config.schema import Config
from common.training.state import Position
from tests.composition import compose_quickly
from tests.unit.reference_optimizer import (
    AHEAD,
    CASES,
    FAULTS,
    HALF,
    NATIVE_KEYS,
    TOLERANCES,
    Arrays,
    Batch,
    Reference,
    batches,
    changed,
    errors,
    expected,
    initial_parameters,
)
from torch_impl.optimizer import Optimizer

pytestmark = pytest.mark.slow

NATIVE = {
    f"{precision}, native {name}": (
        f"optimizer={name}",
        "optimizer.semantics=native",
        *NATIVE_KEYS.get(name, ()),
        f"train.precision={precision}",
        "schedule=linear",
        "schedule.warmup_steps=5",
        "schedule.total_steps=25",
    )
    for precision in TOLERANCES
    for name in OPTIMIZERS
    if name != "nadam"  # the frameworks round the product of its momentums, which is computed again on resume
}
Trained = dict[str, dict[str, Arrays]]


class Training:
    def __init__(self, config: Config, parameters: Arrays, sparse: bool = False) -> None:
        self.sparse = sparse  # whether the gradient of the embedding is sparse
        self.dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        self.named = {
            name: torch.nn.Parameter(torch.tensor(array, dtype=self.dtype)) for name, array in parameters.items()
        }
        self.optimizer = Optimizer(config, self.named)

    def train(self, batches: Sequence[Batch], first: int) -> list[float]:
        return [self.update(first + index, *batch) for index, batch in enumerate(batches)]

    def update(self, step: int, ids: np.ndarray, upstream: np.ndarray) -> float:
        embedding, weight, bias = self.named.values()
        rows = torch.nn.functional.embedding(torch.tensor(ids), embedding, sparse=self.sparse)
        output = torch.nn.functional.linear(rows, weight, bias)
        (output * torch.tensor(upstream, dtype=self.dtype)).sum().backward()
        assert embedding.grad is not None and embedding.grad.is_sparse == self.sparse
        norm = self.optimizer.update(step).item()
        assert all(parameter.grad is None for parameter in self.named.values())
        return norm

    def state(self) -> Arrays:
        """Return copies, because the optimizer changes its arrays."""
        parameters = {name: parameter.detach().numpy() for name, parameter in self.named.items()}
        return {name: array.copy() for name, array in {**parameters, **self.optimizer.slots()}.items()}


def train(config: Config) -> dict[str, Arrays]:
    """Train in several ways. Return the arrays after each training run."""
    data, training = batches(), Training(config, initial_parameters())
    zeros = {name: array.copy() for name, array in training.optimizer.slots().items()}
    norms = training.train(data[:HALF], 1)
    saved = training.state()
    results = {"zeros": zeros}
    sparse = Training(config, initial_parameters(), sparse=True)
    results["sparse"] = {"norms": np.array(sparse.train(data, 1)), **sparse.state()}
    for part, step in (("whole", None), ("resumed", HALF), ("ahead", HALF + AHEAD)):
        if step is not None:
            training = Training(config, {name: saved[name] for name in initial_parameters()})
            slots = {name: array.copy() for name, array in saved.items()}
            training.optimizer.load(slots, Position(step=step, plan_position=HALF))
        after = training.train(data[HALF:], HALF + 1)
        results[part] = {"norms": np.array(norms + after), **training.state()}
    return results


@pytest.fixture(scope="module")
def trained() -> Trained:
    """Return the arrays of each case by the kind of training."""
    return {case: train(parse_config(compose_quickly(*overrides))) for case, overrides in {**CASES, **NATIVE}.items()}


@pytest.mark.parametrize("case", CASES)
def test_update_follows_the_formulas_of_pytorch(trained: Trained, case: str) -> None:
    config = parse_config(compose_quickly(*CASES[case]))
    differences = errors(trained[case]["whole"], expected(config))
    assert max(differences.values()) <= TOLERANCES[config.train.precision], differences


@pytest.mark.parametrize("case", CASES)
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
    whole, resumed = trained[case]["whole"], trained[case]["resumed"]
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        assert array.dtype == resumed[name].dtype and np.array_equal(array, resumed[name]), name


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
        assert array.shape == whole[name].shape and np.all(array == (0.1 if "keras adagrad" in case else 0)), name
