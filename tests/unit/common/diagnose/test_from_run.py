"""Overrides that repeat a run, and the checkpoint that two runs are compared from."""

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.config.compose import collect_values, parse_config, save_config
from common.config.strategies import STRATEGIES
from common.diagnose.arguments import parse_arguments
from common.diagnose.from_run import find_starting_point, read_run_overrides
from common.errors import UserError
from tests.conftest import Compose

pytestmark = pytest.mark.slow

FACTS = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "completed"}

CHOICES = {
    "bert": ("strategy=ddp", "model=bert_mini", "optimizer.weight_decay=0.02", "train.seed=7"),
    "convnet": ("strategy=mirrored", "model=convnet", "schedule=cosine", "schedule.warmup_steps=3"),
    "plateaus of averages": (
        "schedule=plateau",
        "train.eval_every=5",
        "ema.decay=0.9",
        "train.evaluate_average=true",
        "train.evaluate_both=true",
    ),
    "transforms": (
        "strategy=mirrored",
        "model=convnet",
        "data.transforms=[{random_crop: 4}, horizontal_flip, 'a b:f', {function: {name: c:g, scale: 0.5, on: true}}]",
    ),
    "custom": (
        "strategy=parameter_server",
        "strategy.max_staleness=0",
        "model=custom",
        "model.torch=my_models:build",
        "+model.arguments.width=3",
        "+model.arguments.name='a b'",
        "data=arrays",
        "data.train='my=data/train.npz'",
        "data.validation=v.npz",
        "data.channels=[images]",
        "task=regression",
    ),
    "plateau": ("strategy=ddp", "schedule=plateau", "schedule.metric=f1", "metrics=[f1]", "train.eval_every=2"),
    "plateau of an output": (
        "schedule=plateau",
        "schedule.metric=mask_iou",
        "train.eval_every=2",
        "model=custom",
        "model.torch=my_models:build",
        "data=arrays",
        "data.train=t.npz",
        "data.validation=v.npz",
        "task=multi_output",
        "task.outputs={mask: {}, group: {}}",
        "metrics=[mask.iou]",
    ),
    "files": (
        "data=files",
        "data.train='a, b.csv'",
        "data.validation=v.csv",
        "optimizer=sgd",
        "optimizer.momentum=null",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_overrides_compose_the_same_config(name: str, composed: Compose, tmp_path: Path) -> None:
    config = parse_config(composed(*CHOICES[name]))
    save_config(config, tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps({**FACTS, "framework": "tf"}))
    side, overrides = read_run_overrides(tmp_path, trusted=None)
    assert side == f"tf:{config.strategy.kind}"
    again = parse_config(composed(f"strategy={config.strategy.kind}", *overrides))
    assert collect_values(replace(again, train=config.train)) == collect_values(config)
    assert again.train.seed == config.train.seed and again.train.global_batch_size == config.train.global_batch_size


def test_averages_of_weights_are_left_out(composed: Compose, tmp_path: Path) -> None:
    """The average may start after the steps of a diagnosis."""
    save_config(parse_config(composed("swa.start_step=90", "train.evaluate_average=true")), tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps({**FACTS, "framework": "torch"}))
    _, overrides = read_run_overrides(tmp_path, trusted=None)
    assert not [override for override in overrides if override.startswith(("swa", "train.evaluate_average"))]


@pytest.mark.parametrize(
    ("configured", "recorded", "expected"),
    [
        ("auto", "cpu", "cpu"),  # this host may have a GPU
        ("cpu", None, "cpu"),
        ("cuda", "NVIDIA H100", "auto"),  # this host may have none
        ("auto", None, "auto"),
    ],
)
def test_a_run_is_repeated_on_its_device(
    configured: str, recorded: str | None, expected: str, composed: Compose, tmp_path: Path
) -> None:
    save_config(parse_config(composed("strategy=ddp", f"train.device={configured}")), tmp_path / "config.yaml")
    environment = {} if recorded is None else {"environment": {"device": recorded, "flags": {}}}
    (tmp_path / "summary.json").write_text(json.dumps({**FACTS, **environment}))
    _, overrides = read_run_overrides(tmp_path, trusted=None)
    assert f"train.device='{expected}'" in overrides


def test_an_interpreter_in_the_config_of_a_run_is_not_started(composed: Compose, tmp_path: Path) -> None:
    save_config(replace(parse_config(composed("strategy=ddp")), python="/evil"), tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps(FACTS))
    for trust in ("true", "false"):
        _, sides = parse_arguments([str(tmp_path), str(tmp_path), f"trust={trust}", "b.python=/venv/bin/python"])
        assert [side.python for side in sides] == [None, "/venv/bin/python"]
        assert not [text for side in sides for text in side.train_overrides if "evil" in text]
        assert "python=/venv/bin/python" in sides[1].train_overrides


@pytest.fixture
def _remove_extension_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the extension's strategy from other tests."""
    importlib.import_module("benchmarks.diagnose.faulty_strategy")
    monkeypatch.setitem(STRATEGIES, "faulty", STRATEGIES.pop("faulty"))


@pytest.mark.usefixtures("_remove_extension_afterwards")
def test_a_strategy_of_an_extension_needs_no_yaml_file(composed: Compose, tmp_path: Path) -> None:
    chosen = ("extensions=[benchmarks.diagnose.faulty_strategy]", "strategy.kind=faulty", "+strategy.fault=stale")
    config = parse_config(composed("strategy=single", *chosen, "strategy.replicas=3"))
    save_config(config, tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps(FACTS))
    _, sides = parse_arguments([str(tmp_path), str(tmp_path), "trust=true", f"output={tmp_path / 'diagnosis'}"])
    assert [side.title for side in sides] == ["A (torch faulty)", "B (torch faulty)"]
    for side in sides:
        assert parse_config(composed(*side.train_overrides)).strategy == config.strategy


def test_a_run_with_a_missing_extension_is_rejected(composed: Compose, tmp_path: Path) -> None:
    save_config(parse_config(composed()), tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text().replace("extensions: []", "extensions: [gone]")
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "summary.json").write_text(json.dumps(FACTS))
    with pytest.raises(UserError, match=r"^extensions: no module gone; add its directory to PYTHONPATH$"):
        read_run_overrides(tmp_path, trusted=None)


FOREIGN = {  # what a run's config names, and the arguments that name it too
    "extensions: [os]": "extensions=[os]",
    "model: {kind: custom, torch: 'os:system'}": "a.model.torch=os:system",
    "model: {kind: custom, keras: 'os:system'}": "model.keras=os:system",
    "task: {kind: custom, tf: 'os:system'}": "++task.tf=os:system",
    "{schedule: {kind: plateau, metric: system}, metrics: ['os:system', f1]}": "metrics=[os:system]",
    "{schedule: {kind: plateau, metric: a_exit}, metrics: ['a.os:exit'], task: {kind: multi_output}}": (
        "metrics=[a.os:exit]"
    ),
    "data: {arguments: {path: other}}": "data.arguments={path:other}",
    "data: {transforms: [horizontal_flip, 'os:system']}": "data.transforms=[horizontal_flip,os:system]",
    "data: {transforms: [{function: {name: 'os:system'}}]}": "data.transforms=[{function:{name:os:system}}]",
}


@pytest.mark.parametrize("line", FOREIGN)
def test_code_that_a_run_names_is_trusted_by_name(line: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"{line}\n")
    (tmp_path / "summary.json").write_text(json.dumps(FACTS))
    name = re.sub(r"^[+~]*(a\.)?", "", FOREIGN[line])
    error = f"config.yaml names code that would run here: {name}; if you trust it, pass trust=true, or the same keys"
    for arguments in ([], ["model.torch=os:popen"], ["trust=false"]):
        with pytest.raises(UserError, match=re.escape(error)):
            parse_arguments([str(tmp_path), str(tmp_path), *arguments])
    for argument in ("trust=true", FOREIGN[line]):
        with pytest.raises(UserError, match="^data(=null|.kind=None): "):  # the config is read
            parse_arguments([str(tmp_path), str(tmp_path), argument])


def test_transforms_of_both_runs_can_be_replaced_by_others_that_name_no_code(composed: Compose, tmp_path: Path) -> None:
    save_config(parse_config(composed("model=convnet", "data.transforms=[horizontal_flip]")), tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps(FACTS))
    output = f"output={tmp_path / 'diagnosis'}"
    _, sides = parse_arguments([str(tmp_path), str(tmp_path), "data.transforms=[{random_crop: 2}]", output])
    for side in sides:
        assert parse_config(composed(*side.train_overrides)).data.transforms == [{"random_crop": 2}]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="neither run has this code"):
        parse_arguments([str(tmp_path), str(tmp_path), "data.transforms=['m:f']", output])


@pytest.mark.parametrize("framework", ["${config_keys:[evil]}", "${oc.env:HOME}", "jax"])
def test_a_framework_is_no_argument(framework: str, composed: Compose, tmp_path: Path) -> None:
    save_config(parse_config(composed()), tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps({**FACTS, "framework": framework}))
    with pytest.raises(
        UserError, match=r"its summary\.json has the framework .*; a diagnosis repeats runs of torch and tf"
    ):
        parse_arguments([str(tmp_path), str(tmp_path)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {seed: '${oc.env:HOME}'}", "has an interpolation"),
        ("a: &a [1, 1]\nb: [*a, *a]", "has YAML aliases"),
    ],
)
def test_a_config_is_data(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "summary.json").write_text(json.dumps(FACTS))
    with pytest.raises(UserError, match=message):
        read_run_overrides(tmp_path, trusted=None)


def make_run(directory: Path, composed: Compose, losses: dict[int, float], steps: list[int], *overrides: str) -> Path:
    """Write a run with these losses, and empty checkpoints of these steps."""
    directory.mkdir()
    for step in steps:
        (directory / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    rows = [{"step": step, "loss": loss, "grad_norm": 2.0} for step, loss in losses.items()]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_config(parse_config(composed(*overrides)), directory / "config.yaml")
    return directory


LOSSES = {step: 1.0 / step for step in range(1, 31)}
DIVERGING_LOSSES = {step: loss + (1e-3 if step >= 23 else 1e-7) for step, loss in LOSSES.items()}


def test_the_checkpoint_before_two_runs_diverge(composed: Compose, tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", composed, LOSSES, [10, 20, 30])
    b = make_run(tmp_path / "b", composed, DIVERGING_LOSSES, [5, 20, 25])
    newer = make_run(tmp_path / "newer", composed, DIVERGING_LOSSES, [5, 22])
    assert find_starting_point(a, b) == (a / "checkpoints" / "step-00000020", 23)
    assert find_starting_point(a, newer) == (newer / "checkpoints" / "step-00000022", 23)
    rows = (a / "metrics.jsonl").read_text()
    (a / "metrics.jsonl").write_text(
        rows.replace('"loss": 0.0625, "grad_norm": 2.0', '"loss": 0.0625, "grad_norm": 2.1')
    )
    assert find_starting_point(a, b) == (a / "checkpoints" / "step-00000010", 16), "grad_norm diverges before the loss"


@pytest.mark.parametrize(
    ("losses", "steps", "overrides"),
    [
        (LOSSES, [10], ()),
        (DIVERGING_LOSSES, [], ()),
        (DIVERGING_LOSSES, [10], ("optimizer=sgd",)),
        (DIVERGING_LOSSES, [10], ("strategy=parameter_server",)),
        (DIVERGING_LOSSES, [10], ("train.precision=bfloat16",)),
    ],
    ids=["never diverging", "no checkpoint", "another optimizer", "asynchronous", "within the coarser tolerance"],
)
def test_runs_without_a_common_starting_point(
    composed: Compose, tmp_path: Path, losses: dict[int, float], steps: list[int], overrides: tuple[str, ...]
) -> None:
    a = make_run(tmp_path / "a", composed, LOSSES, [25])
    assert find_starting_point(a, make_run(tmp_path / "b", composed, losses, steps, *overrides)) is None
