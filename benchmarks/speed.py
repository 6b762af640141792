"""Steady-state speed against plain hand-written loops: python -m benchmarks.speed [key=value ...]

Lockstep's whole loop (batches from the token cache, record, progress) and the plain loop over the same batches take
turns in one process, block by block, so that other load on the machine slows both; what counts is the median of the
ratios. A third kind of block is Lockstep's with a checkpoint saved meanwhile.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hydra import compose, initialize_config_dir

from common.cluster.discover import discover
from common.config.compose import CONF, load, parse, save
from common.config.schema import Config
from common.data.batches import GlobalBatch, training_batches
from common.hardware import cores
from common.run.checkpoints import Checkpoints
from common.run.prepare import Prepared, open_prepared, prepare, save_prepared
from common.run.progress import TrainingProgress
from common.run.recorder import Recorder
from common.training.loop import Loop
from common.training.observer import Observer
from common.training.stop import Stop
from common.training.strategy import Strategy

BLOCK = 20  # steps
ROUNDS = 12  # of one block each; the first two warm up


def main() -> None:
    """Start the processes of either framework and show what they print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the config, as of the training commands")
    given = parser.parse_args().overrides
    with tempfile.TemporaryDirectory() as directory:
        for framework, strategy in (("torch", "ddp"), ("tf", "mirrored")):
            with initialize_config_dir(CONF, version_base="1.3"):
                overrides = [f"strategy={strategy}", "strategy.replicas=2", "train.steps=1000000", *given]
                config, _ = discover(parse(compose("train", overrides)), framework, {})
            run_dir = Path(directory) / framework
            run_dir.mkdir()
            config, prepared = prepare(config, None)
            save(config, run_dir / "config.yaml")
            save_prepared(prepared, run_dir)
            command = [sys.executable, "-m", "benchmarks.speed", "--worker", framework, str(run_dir)]
            if framework == "torch":
                torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "benchmarks.speed"]
                command = [sys.executable, "-m", *torchrun, "--worker", framework, str(run_dir)]
            result = subprocess.run(command, capture_output=True, text=True)
            print(result.stdout, end="", flush=True)
            if result.returncode:
                sys.exit(result.stderr)


def work(framework: str, run_dir: Path) -> None:
    """One process: time blocks of both loops in turn."""
    config = load(run_dir / "config.yaml")
    prepared = open_prepared(config, run_dir)
    strategy: Strategy
    if framework == "torch":
        import torch
        import torch.distributed as dist

        from benchmarks.plain_torch import PlainDDP
        from torch_impl.batches import to_tensors
        from torch_impl.communication.rendezvous import join_group
        from torch_impl.strategies.ddp import DDP

        torch.set_num_threads(max(1, cores() // 2))
        strategy = DDP(config, prepared, join_group(config, prepared))
        plain_ddp, rank = PlainDDP(prepared.initial), strategy.rank

        def plain(batches: list[GlobalBatch]) -> Callable[[], None]:
            ready = [to_tensors(batch.shard(rank, 2), torch.device("cpu")) for batch in batches]
            return lambda: plain_ddp.train(ready, config.train.log_every)

        barrier: Callable[[], object] = dist.barrier
    else:
        from benchmarks.plain_tf import PlainMirrored
        from tf_impl.batches import to_tensors as to_tf_tensors
        from tf_impl.communication.rendezvous import join_group as join_tf_group
        from tf_impl.strategies.mirrored import Mirrored

        strategy = Mirrored(config, prepared, join_tf_group(config, prepared))
        plain_mirrored = PlainMirrored(prepared.initial, strategy.strategy)

        def plain(batches: list[GlobalBatch]) -> Callable[[], None]:
            ready = [
                plain_mirrored.distribute([to_tf_tensors(batch.shard(replica, 2)) for replica in range(2)])
                for batch in batches
            ]
            return lambda: plain_mirrored.train(ready, config.train.log_every)

        def barrier() -> None:
            pass

    speed, cost = compare(config, prepared, strategy, plain, barrier, run_dir)
    if strategy.is_chief:
        who = f"{framework} {config.strategy.kind} x2, {config.model.name}"
        shown = " ".join(f"{ratio:.2f}" for ratio in sorted(speed))
        print(f"{who}: Lockstep's speed over the plain loop's, median {statistics.median(speed):.3f} of {shown}")
        every = config.train.checkpoint_every
        shown = " ".join(f"{each:.2%}" for each in sorted(cost))
        print(f"{who}: a checkpoint every {every} steps costs, median {statistics.median(cost):.2%} of {shown}")


def compare(
    config: Config,
    prepared: Prepared,
    strategy: Strategy,
    plain: Callable[[list[GlobalBatch]], Callable[[], None]],
    barrier: Callable[[], object],
    run_dir: Path,
) -> tuple[list[float], list[float]]:
    """Plain seconds over Lockstep seconds, and what saving adds to these, as a share; one of each for each round."""
    observers: list[Observer] = []
    checkpoints = None
    if strategy.is_chief:
        checkpoints = Checkpoints(config, run_dir, prepared)
        progress = TrainingProgress("speed", config.train.steps, config.train.log_every)
        observers = [Recorder(run_dir, prepared.start), checkpoints, progress]
    loop = Loop(config, strategy, prepared.cache, prepared.start, Stop(), observers)

    def saving(steps: range) -> None:
        loop.save()
        loop.train(steps)
        if checkpoints is not None:
            checkpoints.finish()

    assert config.train.checkpoint_every is not None
    share = BLOCK / config.train.checkpoint_every  # of the steps between two checkpoints
    speed, cost = [], []
    for turn in range(ROUNDS):
        steps = range(turn * BLOCK + 1, (turn + 1) * BLOCK + 1)
        batches = list(training_batches(prepared.cache.train, config.train.global_batch_size, config.train.seed, steps))
        blocks: dict[str, Callable[[], None]] = {
            "plain": plain(batches),
            "lockstep": partial(loop.train, steps),
            "saving": partial(saving, steps),
        }
        order = list(blocks) if turn % 2 else list(reversed(blocks))
        seconds = {name: seconds_of(blocks[name], barrier) for name in order}
        if turn >= 2:
            speed.append(seconds["plain"] / seconds["lockstep"])
            cost.append((seconds["saving"] / seconds["lockstep"] - 1) * share)
    return speed, cost


def seconds_of(block: Callable[[], None], barrier: Callable[[], object]) -> float:
    """Seconds that a block takes, all ranks together."""
    barrier()
    began = time.perf_counter()
    block()
    barrier()
    return time.perf_counter() - began


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(sys.argv[-2], Path(sys.argv[-1]))
    else:
        main()
