"""Tests of the settings of tasks of several outputs and of pairs, and of the errors for wrong ones."""

from pathlib import Path

import pytest

from common.config.compose import load_config, save_config
from common.config.task_kinds import MultiOutputSettings
from common.config.validate import check_config
from common.errors import UserError
from tests.conftest import MakeConfig

CUSTOM = ("model=custom", "model.torch=a:b", "model.tf=a:b", "data=arrays", "data.train=t.npz", "data.validation=v.npz")


def test_outputs_have_the_values_of_their_kind(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(
        *CUSTOM, "task=multi_output", "task.outputs={mask: {loss: dice, weight: 2}, group: {output: 1}}"
    )
    check_config(config)
    assert isinstance(config.task, MultiOutputSettings)
    mask, group = config.task.tasks
    assert (mask.output, mask.label, mask.weight, mask.task.loss) == ("mask", "mask", 2, "dice")  # type: ignore[attr-defined]
    assert (group.output, group.label, group.weight, group.task.ignore_label) == (1, "group", 1, -100)  # type: ignore[attr-defined]
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        ("null", "task.outputs: names no output"),
        ("{a: 3}", "task.outputs.a=3: must be a section of keys"),
        ("{a: {weight: x}}", "task.outputs.a.weight=x: must be a number above 0"),
        ("{a: {weight: 0}}", "task.outputs.a.weight=0: must be a number above 0"),
        ("{a: {kind: custom}}", "task.outputs.a.kind=custom: no such kind for an output; there are classification"),
        ("{a: {loss: mse}}", "task.outputs.a.loss=mse: no such choice; there are cross_entropy"),
        ("{a: {loss: dice, label_smoothing: 0.1}}", "task.outputs.a.label_smoothing=0.1: task.outputs.a.loss=dice"),
        ("{a: {output: [1]}}", r"task.outputs.a.output=\[1\]: must be the name of an output"),
        ("{a: {label: 1}}", "task.outputs.a.label=1: must be the name of an array"),
        ("{final: {}, a: {}}", "task.outputs.final: would report final_loss, a name that every run has; rename it"),
        ("{validation: {}}", "task.outputs.validation: would report validation_loss, a name"),
        ("{a-b: {}}", "task.outputs.a-b: the name of an output must be letters"),
    ],
)
def test_wrong_outputs_are_refused(make_config: MakeConfig, outputs: str, error: str) -> None:
    with pytest.raises(UserError, match=f"^{error}"):
        check_config(make_config(*CUSTOM, "task=multi_output", f"task.outputs={outputs}"))


OUTPUTS = ("task=multi_output", "task.outputs={a: {}}")


@pytest.mark.parametrize(
    ("task", "override", "error"),
    [
        (("task=contrastive",), "metrics=[f1]", r"metrics=\[f1\]: does not fit task=contrastive; choose recall_at_1"),
        (("task=contrastive",), "train.predictions=true", "train.predictions=true: cannot be used with task=contr"),
        (("task=contrastive",), "data=lines", "data.kind=lines: task=contrastive needs named arrays"),
        (OUTPUTS, "data=lines", "data.kind=lines: task=multi_output needs named arrays"),
    ],
)
def test_what_does_not_fit_the_labels_of_the_task_is_refused(
    make_config: MakeConfig, task: tuple[str, ...], override: str, error: str
) -> None:
    with pytest.raises(UserError, match=f"^{error}"):
        check_config(make_config(*CUSTOM, *task, override))


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("train.micro_batches=2", "train.micro_batches=2: task=contrastive compares all examples"),
        ("train.padding=micro_batches", "train.padding=micro_batches: task=contrastive compares all examples"),
        ("strategy=parameter_server", "strategy=parameter_server: task=contrastive .*; use single, dp, ddp, allreduce"),
        ("strategy=central_storage", "strategy=central_storage: task=contrastive .*; use single, dp, ddp, allreduce"),
    ],
)
def test_what_cannot_compare_all_examples_is_refused(make_config: MakeConfig, override: str, error: str) -> None:
    with pytest.raises(UserError, match=f"^{error}"):
        check_config(make_config(*CUSTOM, "task=contrastive", override))
