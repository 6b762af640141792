from typing import Any

import pytest

from common.config.strategies import STRATEGIES, list_strategies
from tests.conftest import MakeConfig
from tests.unit.common.config.conftest import ErrorLine


def test_strategies_of_both_frameworks() -> None:
    assert list_strategies("torch") == ["single", "dp", "ddp", "allreduce", "zero", "fsdp", "parameter_server"]
    assert list_strategies("tf") == ["single", "mirrored", "multiworker", "central_storage", "parameter_server"]
    assert list_strategies() == list(STRATEGIES)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["strategy=ddp", "strategy.replicas=0"], "strategy.replicas=0: must be at least 1"),
        (["strategy=ddp", "strategy.replicas=-1"], "strategy.replicas=-1: must be at least 1"),
        (["strategy.replicas=2"], "strategy.replicas=2: strategy=single has 1; choose another strategy"),
        (["strategy=dp", "strategy.output_device=2"], "strategy.output_device=2: no such replica; there are 0 to 1"),
        (["strategy=ddp", "strategy.bucket_cap_mb=0"], "strategy.bucket_cap_mb=0.0: must be above 0 and finite"),
        (["strategy=allreduce", "strategy.algorithm=tree"], "strategy.algorithm=tree: no such choice; there are gath"),
        (["strategy=fsdp", "strategy.param_dtype=float16"], "strategy.param_dtype=float16: no such choice; there ar"),
        (["strategy=fsdp", "strategy.copies=3"], "strategy.copies=3: does not divide the number of replicas, 2; ch"),
    ],
)
def test_wrong_values_are_refused(error_line: ErrorLine, overrides: list[str], expected: str) -> None:
    assert error_line(*overrides).startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "roles", "others"),
    [
        (["strategy=single", "strategy.replicas=1"], {"worker": 1}, 0),
        (["strategy=mirrored", "strategy.replicas=3"], {"worker": 1}, 0),  # replicas of one process
        (["strategy=ddp", "strategy.replicas=3"], {"worker": 3}, 0),
        (["strategy=fsdp", "strategy.replicas=3"], {"worker": 3}, 0),
        (["strategy=multiworker", "strategy.workers=3"], {"worker": 3}, 0),
        (["strategy=parameter_server", "strategy.replicas=3"], {"chief": 1, "ps": 1, "worker": 3}, 2),
        (
            ["strategy=parameter_server", "strategy.replicas=1", "strategy.parameter_servers=2"],
            {"chief": 1, "ps": 2, "worker": 1},
            3,
        ),
    ],
)
def test_processes_of_each_role(
    make_config: MakeConfig, overrides: list[str], roles: dict[str, int], others: int
) -> None:
    strategy = make_config(*overrides).strategy
    assert list(strategy.roles.items()) == list(roles.items())
    assert strategy.other_processes == others


@pytest.mark.parametrize(
    ("keys", "updates"),
    [({}, 3), ({"batch": "global"}, 1), ({"max_staleness": 0}, 1), ({"max_staleness": 2}, 3)],
)
def test_updates_per_global_batch(make_config: MakeConfig, keys: dict[str, Any], updates: int) -> None:
    values = [f"strategy.{name}={value}" for name, value in keys.items()]
    strategy = make_config("strategy=parameter_server", "strategy.replicas=3", *values).strategy
    assert strategy.updates_per_batch == updates
    assert make_config("strategy=ddp", "strategy.replicas=3").strategy.updates_per_batch == 1
