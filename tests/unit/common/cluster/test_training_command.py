from dataclasses import replace
from pathlib import Path

import pytest

from common.cluster import training_command
from common.cluster.training_command import join_run
from common.config.schema import Config
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
