import pytest

from common.config.resolve import resolve_config, resolve_steps
from common.config.strategies import ParameterServerSettings
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.config.conftest import ErrorLine
from tests.unit.common.conftest import Gpus


@pytest.mark.parametrize(
    ("gpu_count", "overrides", "replicas"),
    [
        (0, ["strategy=single"], 1),
        (4, ["strategy=single"], 1),
        (0, ["strategy=ddp"], 2),
        (1, ["strategy=ddp"], 1),
        (4, ["strategy=dp"], 4),
        (4, ["strategy=ddp", "strategy.replicas=3"], 3),
        (0, ["strategy=ddp", "strategy.replicas=16"], 16),
        (0, ["strategy=ddp", "strategy.replicas=3", "train.global_batch_size=3"], 3),
    ],
)
def test_replicas(make_config: MakeConfig, gpus: Gpus, gpu_count: int, overrides: list[str], replicas: int) -> None:
    gpus(gpu_count)
    config = resolve_config(make_config(*overrides))
    assert config.strategy.replicas == config.strategy.world_size == replicas
    assert resolve_config(config) == config


@pytest.mark.parametrize(("gpu_count", "hosts", "replicas"), [(0, 3, 6), (4, 2, 8), (1, 1, 1)])
def test_replicas_of_several_hosts(
    make_config: MakeConfig, gpus: Gpus, gpu_count: int, hosts: int, replicas: int
) -> None:
    gpus(gpu_count)
    config = make_config("strategy=ddp", "cluster=hosts", "cluster.hosts=[a,b,c]", "cluster.node=0")
    assert resolve_config(config, hosts).strategy.replicas == replicas


def test_more_replicas_than_gpus(make_config: MakeConfig, gpus: Gpus) -> None:
    gpus(2)
    with pytest.raises(UserError) as raised:
        resolve_config(make_config("strategy=mirrored", "strategy.replicas=3"))
    assert str(raised.value) == (
        "strategy.replicas=3: more than the 2 visible GPU(s); lower it, or set train.device=cpu"
    )


def test_a_run_on_the_cpu_counts_no_gpus(make_config: MakeConfig, gpus: Gpus) -> None:
    gpus(8)
    assert resolve_config(make_config("strategy=ddp", "train.device=cpu")).strategy.replicas == 2
    assert resolve_config(make_config("strategy=ddp", "train.device=cpu"), gpus=4).strategy.replicas == 2
    config = resolve_config(make_config("strategy=mirrored", "strategy.replicas=9", "train.device=cpu"))
    assert config.strategy.replicas == 9


def test_a_run_on_gpus_needs_one(make_config: MakeConfig, gpus: Gpus) -> None:
    config = make_config("strategy=ddp", "train.device=cuda")
    error = "train.device=cuda: there is no visible NVIDIA GPU; set it to auto or cpu"
    for hosts, visible in ((1, None), (2, None), (1, 0)):
        with pytest.raises(UserError) as raised:
            resolve_config(config, hosts, gpus=visible)
        assert str(raised.value) == error
    # The hosts of a run that another program has started may have GPUs although this one has none
    assert resolve_config(config, started={"process": 3}, source="WORLD_SIZE").strategy.replicas == 3
    gpus(4)
    assert resolve_config(config).strategy.replicas == 4


@pytest.mark.parametrize(
    ("overrides", "hosts", "expected"),
    [
        (
            ["strategy=ddp", "strategy.replicas=5", "train.global_batch_size=4"],
            1,
            "train.global_batch_size=4: smaller than the 5 replicas; raise it or lower strategy.replicas",
        ),
        (
            ["strategy=mirrored"],
            2,
            "cluster=hosts: strategy=mirrored is one process; use ddp, allreduce, zero, fsdp, multiworker, "
            "parameter_server",
        ),
        (
            ["strategy=multiworker", "strategy.workers=1"],
            2,
            "strategy.replicas=1: fewer than the 2 hosts; raise it or name fewer",
        ),
        (
            ["strategy=parameter_server", "strategy.replicas=1"],
            4,
            "strategy.replicas=1: fewer than the 4 hosts; raise it or name fewer",
        ),
    ],
)
def test_replicas_that_do_not_fit_the_hosts(
    error_line: ErrorLine, overrides: list[str], hosts: int, expected: str
) -> None:
    cluster = ["cluster=hosts", f"cluster.hosts=[{','.join('abcd'[:hosts])}]", "cluster.node=0"] if hosts > 1 else []
    assert error_line(*overrides, *cluster, framework="tf" if hosts > 1 else "torch", hosts=hosts) == expected


@pytest.mark.parametrize(
    ("overrides", "started", "replicas", "servers"),
    [
        (["strategy=ddp"], {"process": 3}, 3, None),
        (["strategy=ddp", "strategy.replicas=3"], {"process": 3}, 3, None),
        (["strategy=multiworker"], {"worker": 4}, 4, None),
        (["strategy=parameter_server"], {"process": 5}, 3, 1),
        (["strategy=parameter_server", "strategy.parameter_servers=2"], {"process": 5}, 2, 2),
        (["strategy=parameter_server"], {"chief": 1, "worker": 2, "ps": 3}, 2, 3),
    ],
)
def test_replicas_that_a_scheduler_has_started(
    make_config: MakeConfig, overrides: list[str], started: dict[str, int], replicas: int, servers: int | None
) -> None:
    strategy = resolve_config(make_config(*overrides), started=started, source="WORLD_SIZE").strategy
    assert strategy.replicas == replicas
    assert not isinstance(strategy, ParameterServerSettings) or strategy.parameter_servers == servers


@pytest.mark.parametrize(
    ("overrides", "started", "expected"),
    [
        (
            ["strategy=ddp", "strategy.replicas=2"],
            {"process": 3},
            "strategy.replicas=2, but WORLD_SIZE=3 gives 3; remove strategy.replicas or make them equal",
        ),
        (
            ["strategy=parameter_server", "strategy.parameter_servers=2"],
            {"chief": 1, "worker": 1, "ps": 1},
            "strategy.parameter_servers=2, but WORLD_SIZE=3 gives 1; remove strategy.parameter_servers or make them eq",
        ),
        (
            ["strategy=parameter_server", "strategy.parameter_servers=2"],
            {"process": 3},
            "WORLD_SIZE=3: leaves no worker, since 3 processes have other roles; start more processes, or lower ",
        ),
    ],
)
def test_replicas_that_disagree_with_the_scheduler(
    make_config: MakeConfig, overrides: list[str], started: dict[str, int], expected: str
) -> None:
    with pytest.raises(UserError) as raised:
        resolve_config(make_config(*overrides), started=started, source="WORLD_SIZE=3")
    assert str(raised.value).startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "steps_of_epochs", "steps", "total"),
    [
        (["train.steps=9"], None, 9, 9),
        (["train.steps=9", "schedule.total_steps=20"], None, 9, 20),
        (["train.epochs=2"], 4, 4, 4),
        (["train.epochs=3", "schedule.total_steps=5"], 6, 6, 5),
    ],
)
def test_steps(
    make_config: MakeConfig, overrides: list[str], steps_of_epochs: int | None, steps: int, total: int
) -> None:
    config = resolve_steps(make_config(*overrides), steps_of_epochs)
    assert (config.train.steps, config.train.epochs, config.schedule.total_steps) == (steps, None, total)
    assert resolve_steps(config, None) == config


@pytest.mark.parametrize(
    ("overrides", "warmup"),
    [
        (["train.steps=3"], 0),
        (["train.steps=60"], 10),
        (["train.steps=300"], 50),
        (["train.steps=9000"], 50),
        (["train.steps=60", "schedule.total_steps=30"], 5),
        (["train.steps=60", "schedule.warmup_steps=20"], 20),
        (["train.steps=60", "schedule=constant"], 0),
        (["train.steps=300", "schedule.every=20"], 40),
        (["train.steps=600", "schedule.every=100"], 0),
    ],
)
def test_warmup_steps(make_config: MakeConfig, overrides: list[str], warmup: int) -> None:
    assert resolve_steps(make_config(*overrides), None).schedule.warmup_steps == warmup


@pytest.mark.parametrize(("precision", "epsilon"), [("float32", 2**-23), ("bfloat16", 2**-23), ("float64", 2**-52)])
def test_epsilon_of_adafactor_is_that_of_the_weights(make_config: MakeConfig, precision: str, epsilon: float) -> None:
    config = resolve_config(make_config("optimizer=adafactor", f"train.precision={precision}", "train.device=cpu"))
    assert config.optimizer.epsilon == epsilon
    with_epsilon = make_config("optimizer=adafactor", "optimizer.epsilon=0.5", "train.device=cpu")
    assert resolve_config(with_epsilon).optimizer.epsilon == 0.5
