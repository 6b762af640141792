from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.cluster import training_command
from common.cluster.topology import HostGroup
from common.cluster.training_command import join_run, run_training
from common.config.schema import Config
from common.errors import FAILURE, USER_ERROR, UserError
from common.run.context import RunContext
from tests.conftest import MakeConfig


def test_every_rank_expands_the_home_directory(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    searched = []
    contexts: list[RunContext] = []

    def prepare(config: Config, run_dir: Path | None) -> tuple[Config, None]:
        searched.append(run_dir)
        return config, None

    def train(context: RunContext) -> int:
        contexts.append(context)
        return 0

    monkeypatch.setattr(training_command, "prepare_inputs", prepare)
    assert join_run(replace(make_config("strategy=ddp"), run_dir="~/run"), "torch", False, train) == 0
    assert searched == [Path("/home/user/run")] and contexts[0].run_dir == Path("/home/user/run")


@pytest.mark.parametrize(("code", "expected"), [(FAILURE, "cannot import torch"), (USER_ERROR, str(USER_ERROR))])
def test_a_crash_in_another_interpreter_is_explained_by_a_failed_import(
    code: int, expected: str, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_import(key: str, python: str, framework: str, needs_keras_hub: bool) -> None:
        raise UserError(f"{key}={python}: cannot import {framework}")

    context = SimpleNamespace(run_dir=Path("run"))
    monkeypatch.setattr(training_command, "open_run", lambda *arguments: nullcontext(context))
    monkeypatch.setattr(training_command, "is_complete", lambda context: False)
    monkeypatch.setattr(training_command, "check_interpreter", lambda *arguments: {})
    monkeypatch.setattr(training_command, "check_import", check_import)
    config = replace(make_config("strategy=ddp"), python="/venv/bin/python")
    with pytest.raises((UserError, SystemExit), match=f"{expected}$"):
        run_training(config, HostGroup(), "torch", lambda context, hosts: code, lambda *arguments: 0)
