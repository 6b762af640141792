"""The model pairs of examples/ have the same curve in both frameworks, and planted faults are seen."""

from importlib import import_module
from pathlib import Path

import pytest

from common.compare.verdict import RunPair, compare_runs
from tests.parity.conftest import Planned, Runs, list_pairs, train
from tests.parity.test_parity import TOLERANCES, find_violations

FEW = ("torch-single", "torch-ddp-3", "tf-single")
SOME = (*FEW, "tf-mirrored-2")  # a slow one, which needs a process for each example
ALL = (*SOME, "torch-dp-2", "torch-ddp-2", "tf-multiworker-2")
ARRAYS = ("data=arrays", "data.train={data}/train.npz", "data.validation={data}/validation.npz")
TEXT = ("data=lines", "data.train={data}/train.txt", "data.validation={data}/validation.txt", "data.tokenizer=bytes")
EXAMPLES = {  # the module of the data, and the settings
    "resnet": ("resnet", (*ARRAYS, "data.channels=[images]", "model.sync_batch_norm=true")),
    "lstm": ("lstm", ARRAYS),
    "gpt": ("gpt", (*TEXT, "train.max_length=64", "task=language_model")),
    "tabular": ("tabular", (*ARRAYS, "task=regression", "task.loss=huber")),
    "hf": ("lstm", (*ARRAYS, "task.label_smoothing=0.1", "task.class_weights=[0.5,2]")),
}
STRATEGIES = {example: FEW if example in ("tabular", "hf") else SOME for example in EXAMPLES}
# Shards are uneven for 2 and for 3 replicas.
COMMON = ("train.steps=30", "schedule=constant", "optimizer.learning_rate=0.003", "train.global_batch_size=31")
# A ReLU whose input is 0 except for rounding makes the curves diverge: see docs/parity.md, Long runs.
SMOOTH = {"resnet": ("++model.arguments={activation: silu}",)}
# The gradient of the bias of a key is 0. Adam scales its rounding errors to steps of the full learning rate.
WITHOUT_GRADIENT = {"hf": "k_lin.bias"}
FAULTS = {  # an example and a strategy that show the fault; settings, or the name of the fault in the trainer
    "BatchNorm of each replica": ("resnet", "torch-ddp-3", ("model.sync_batch_norm=false",), None),
    "native dropout": ("gpt", "tf-single", (), "native_dropout"),
    "mean of replica means": ("lstm", "tf-mirrored-2", (), "mean_of_replica_means"),
}


def make_overrides(base: Path, example: str, precision: str) -> tuple[str, ...]:
    """Write the data of an example and return its overrides."""
    module, settings = EXAMPLES[example]
    data = base / "data" / module
    import_module(f"examples.{module}.data").write(data)
    files = {"torch": "model_torch", "tf": "model_keras"}
    model = [f"model.{side}=examples.{example}.{file}:build" for side, file in files.items()]
    formatted = [setting.format(data=data) for setting in settings]
    return (f"cache_dir={base / 'cache'}", "model=custom", *model, *formatted, *COMMON, f"train.precision={precision}")


@pytest.fixture(scope="module")
def example_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The runs of all examples, and the runs with planted faults."""
    runs = Runs(tmp_path_factory.mktemp("examples"))
    settings = {example: make_overrides(runs.base, example, "float64") for example in EXAMPLES}
    pairs = list_pairs(STRATEGIES)
    planned = {runs.path(example, name): Planned(name, settings[example]) for example, name in pairs}
    for fault, (example, strategy, changed, name) in FAULTS.items():
        few = (*settings[example], *changed, "train.steps=5")
        planned[runs.path(example, strategy, fault)] = Planned(strategy, few, name)
    train(planned)
    return runs


def compare_pairs(runs: Runs, example: str, strategies: tuple[str, ...]) -> list[RunPair]:
    comparison = compare_runs(runs.paths(example, strategies), TOLERANCES)
    assert {pair.steps for pair in comparison.pairs} == {30}
    assert len(comparison.pairs) == len(strategies) * (len(strategies) - 1) / 2
    return comparison.pairs


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_draws_one_curve(example_runs: Runs, example: str) -> None:
    """The final weights and moving statistics are compared too."""
    for pair in compare_pairs(example_runs, example, STRATEGIES[example]):
        assert not find_violations(pair)
        assert abs(pair.evaluation_loss_difference or 0) < 1e-9


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(example_runs: Runs, fault: str) -> None:
    example, strategy, *_ = FAULTS[fault]
    correct, faulty = example_runs.path(example, "torch-single"), example_runs.path(example, strategy, fault)
    (pair,) = compare_runs([correct, faulty], TOLERANCES).pairs
    assert pair.first_step_beyond is not None


@pytest.mark.bench
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_strategy(example: str, precision: str, tmp_path: Path) -> None:
    runs, settings = Runs(tmp_path), make_overrides(tmp_path, example, precision)
    if precision == "float32":
        settings = (*settings, *SMOOTH.get(example, ()))
    train({runs.path(example, name): Planned(name, settings) for name in ALL})
    ignored = WITHOUT_GRADIENT.get(example, "") if precision == "float32" else ""
    pairs = compare_pairs(runs, example, ALL)
    assert not [violation for pair in pairs for violation in find_violations(pair, ignored)]
