"""Steady-state speed against plain hand-written loops: python -m benchmarks.speed [key=value ...]

Lockstep's whole loop (batches from the token cache, record, progress) and the plain loop over the same batches take
turns in one process, block by block, so that other load on the machine falls on both; what counts is the median of the
ratios. A third kind of block is Lockstep's with a checkpoint saved meanwhile.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hydra import compose, initialize_config_dir

from common.cluster.processes import Stop
from common.config.schema import CONF, Config, load, parse, save
from common.config.validate import validate
from common.data.batches import GlobalBatch, training_batches
from common.data.text.token_cache import TokenCache
from common.hardware import cores
from common.models.initial_weights import InitialCheckpoint
from common.prepare import prepare, resolve
from common.run.checkpoint import Checkpoints, Position
from common.run.directory import Recorder
from common.run.progress import TrainingProgress
from common.training.loop import Loop, Strategy

BLOCK = 20  # steps
ROUNDS = 12  # of one block each; the first two warm up


def main() -> None:
    """Start the processes of either framework and show what they print."""
    with tempfile.TemporaryDirectory() as directory:
        for framework, strategy in (("torch", "ddp"), ("tf", "mirrored")):
            with initialize_config_dir(CONF, version_base="1.3"):
                overrides = [f"strategy={strategy}", "strategy.replicas=2", "train.steps=1000000", *sys.argv[1:]]
                config = parse(compose("train", overrides))
            validate(config, framework)
            run_dir = Path(directory) / framework
            run_dir.mkdir()
            config.run_dir = str(run_dir)
            cache, _ = prepare(config)
            resolve(config, cache)
            save(config, run_dir / "config.yaml")
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
    cache, initial = prepare(config)
    assert isinstance(cache, TokenCache)
    strategy: Strategy
    if framework == "torch":
        import torch
        import torch.distributed as dist

        from benchmarks.plain_torch import PlainDDP
        from torch_impl.batches import to_tensors
        from torch_impl.strategies.ddp import DDP

        torch.set_num_threads(max(1, cores() // 2))
        strategy = DDP(config, initial)
        plain_ddp, rank = PlainDDP(initial), strategy.rank

        def plain(batches: list[GlobalBatch]) -> Callable[[], None]:
            ready = [to_tensors(batch.shard(rank, 2), torch.device("cpu")) for batch in batches]
            return lambda: plain_ddp.train(ready, config.train.log_every)

        barrier: Callable[[], object] = dist.barrier
    else:
        from benchmarks.plain_tf import PlainMirrored
        from tf_impl.batches import to_tensors as to_tf_tensors
        from tf_impl.strategies.mirrored import Mirrored

        strategy = Mirrored(config, initial)
        plain_mirrored = PlainMirrored(initial, strategy.strategy)

        def plain(batches: list[GlobalBatch]) -> Callable[[], None]:
            ready = [
                plain_mirrored.distribute([to_tf_tensors(batch.shard(replica, 2)) for replica in range(2)])
                for batch in batches
            ]
            return lambda: plain_mirrored.train(ready, config.train.log_every)

        def barrier() -> None:
            pass

    speed, cost = compare(config, cache, initial, strategy, plain, barrier, run_dir)
    if strategy.is_chief:
        who = f"{framework} {config.strategy.name} x2, {config.model.name}"
        shown = " ".join(f"{ratio:.2f}" for ratio in sorted(speed))
        print(f"{who}: Lockstep's speed over the plain loop's, median {statistics.median(speed):.3f} of {shown}")
        every = config.train.checkpoint_every
        shown = " ".join(f"{each:.2%}" for each in sorted(cost))
        print(f"{who}: a checkpoint every {every} steps costs, median {statistics.median(cost):.2%} of {shown}")


def compare(
    config: Config,
    cache: TokenCache,
    initial: InitialCheckpoint,
    strategy: Strategy,
    plain: Callable[[list[GlobalBatch]], Callable[[], None]],
    barrier: Callable[[], object],
    run_dir: Path,
) -> tuple[list[float], list[float]]:
    """Plain seconds over Lockstep seconds, and what saving adds to these, as a share; one of each for each round."""
    recorder, checkpoints, progress = None, None, None
    if strategy.is_chief:
        recorder, checkpoints = Recorder(run_dir, Position()), Checkpoints(config, run_dir, initial)
        progress = TrainingProgress("speed", config.train.steps, config.train.log_every)
    loop = Loop(config, strategy, cache, recorder, checkpoints, progress, Stop(), Position())

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
        batches = list(training_batches(cache.train, config.train.global_batch_size, config.train.seed, steps))
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
