"""The processes of a PyTorch run: one, or for ddp one for each replica. It imports torch only in those processes."""

import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from common import config as configs
from common import run
from common.config import Config
from common.errors import UserError
from common.hardware import cores, loopback_interface
from common.prepare import prepare, resolve
from common.processes import Process, die_with_parent, python
from common.record import new_run_dir


def launch(config: Config) -> int:
    """Start the processes of a run and see them to their end. Returns its exit code."""
    assert config.run_dir is not None and config.strategy.replicas is not None
    command = python("torch_impl.launch", config.run_dir)
    # Threads that spin at a barrier while another process has their core wait for whole scheduler ticks: 1.5 s a step
    # in place of 0.05 s, measured on a busy machine with two cores.
    patient = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    if config.strategy.name != "ddp":
        return run.start(config, "torch", [Process("torch", command, patient)])
    world_size = config.strategy.replicas
    with tempfile.TemporaryDirectory(prefix="lockstep-") as meeting_place:  # a file: no port that another could take
        shared = {
            **patient,
            "WORLD_SIZE": str(world_size),
            "LOCKSTEP_RENDEZVOUS": f"file://{meeting_place}/rendezvous",
            "GLOO_SOCKET_IFNAME": loopback_interface(),
            "OMP_NUM_THREADS": str(max(1, cores() // world_size)),
        }
        ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]
        return run.start(config, "torch", [Process(f"rank {env['RANK']}", command, env) for env in ranks])


def joins_group() -> bool:
    """Whether torchrun, or something that sets the same variables, started this process."""
    return "RANK" in os.environ


def join(config: Config) -> int:
    """Be one rank of the group that torchrun started. Returns the exit code of this process."""
    missing = [name for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UserError(f"RANK is set but {', '.join(missing)} is not; start with torchrun, or unset RANK")
    if config.strategy.name != "ddp":
        raise UserError(f"strategy={config.strategy.name}: one process only; under torchrun use strategy=ddp")
    config.strategy.replicas = int(os.environ["WORLD_SIZE"])
    is_chief = os.environ["RANK"] == "0"
    config.run_dir = config.run_dir if is_chief else "."  # only the chief writes
    with new_run_dir(config, "torch") if is_chief else nullcontext():
        cache, _ = prepare(config)
        resolve(config, cache)
    return _work(config)


def _work(config: Config) -> int:
    from torch_impl.strategies import STRATEGIES

    return run.work(config, "torch", STRATEGIES[config.strategy.name])


if __name__ == "__main__":
    die_with_parent()
    sys.exit(_work(configs.load(Path(sys.argv[1]) / "config.yaml")))
