"""Compare steps per second over a slow link with the alpha-beta model: python -m benchmarks.network [--quick].

The model says that a message of m bytes takes alpha + m beta seconds. Two hosts, which are network namespaces of this
machine, train by the commands that a user types (cluster=hosts). They share the machine's cores. The command writes
docs/network.md and docs/network.png.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.network_report import LinkMeasurement, SettingMeasurement, write_report
from benchmarks.network_settings import SETTINGS, Setting, predict_step_seconds
from benchmarks.two_hosts import ADDRESSES, TwoHosts, two_hosts
from common.config.command_line import report_user_errors
from common.training.rows import read_rows
from torch_impl.communication.cost_model import fit_alpha_beta

LINKS = (1000, 200, 50)  # Mbit/s
UNTIMED, TIMED = 4, 8  # steps of a run; the first ones do not count, because PowerSGD compresses from the third on
COMMON = ["model=bert_mini", "data.train_examples=600", "data.validation_examples=60", "train.log_every=1"]


class NetworkBenchmark:
    """The commands of the benchmark on two hosts."""

    def __init__(self, hosts: TwoHosts, directory: Path) -> None:
        self.hosts, self.directory = hosts, directory
        self.runs = 0

    def measure_link(self) -> tuple[float, float]:
        """Return alpha (seconds for a message) and beta (seconds for a byte) of the link as Gloo uses it."""
        command = [sys.executable, "-m", "benchmarks.ping_pong"]
        output = self._run_together([command, command], [{"RANK": str(node)} for node in range(2)])[0]
        times = {int(size): seconds for size, seconds in json.loads(output.splitlines()[-1]).items()}
        return fit_alpha_beta(list(times), list(times.values()))

    def measure_computing(self) -> float:
        """Return the seconds of computing a step on half the global batch, while the other rank does the same."""
        directories = [self._new_run_dir() for _ in range(2)]
        self._run_together(
            [self._train("strategy=single", "train.global_batch_size=16", f"run_dir={path}") for path in directories]
        )
        return statistics.mean(_seconds_per_step(path) for path in directories)

    def measure_training(self, setting: Setting) -> float:
        """Return the seconds of a step with a setting."""
        run_dir = self._new_run_dir()
        hosts = ["cluster=hosts", f"cluster.hosts=[{','.join(ADDRESSES)}]", "strategy.replicas=2"]
        self._run_together(
            [self._train(*hosts, f"cluster.node={node}", *setting.arguments(), f"run_dir={run_dir}") for node in (0, 1)]
        )
        return _seconds_per_step(run_dir)

    def read_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters."""
        (weights,) = self.directory.glob("cache/weights-*/model.safetensors")
        return [array.shape for array in load_file(weights).values()]

    def _new_run_dir(self) -> Path:
        self.runs += 1
        return self.directory / f"run-{self.runs}"

    def _train(self, *arguments: str) -> list[str]:
        cache = f"cache_dir={self.directory / 'cache'}"
        return [sys.executable, "-m", "torch_impl.train", *COMMON, cache, f"train.steps={UNTIMED + TIMED}", *arguments]

    def _run_together(self, commands: list[list[str]], environments: list[dict[str, str]] | None = None) -> list[str]:
        """Run a command on each host at the same time, perhaps with environment variables. Return their outputs."""
        shared = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29400", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        shared |= {"OMP_WAIT_POLICY": "PASSIVE", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        processes = []
        for node, command in enumerate(commands):
            environment = {**shared, **environments[node]} if environments else {}
            processes.append(
                subprocess.Popen(
                    self.hosts.wrap_command(node, command),
                    env={**os.environ, **environment},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            outputs = [process.communicate(timeout=600)[0] for process in processes]
        finally:
            for process in processes:
                process.terminate()
        if failed := [text for process, text in zip(processes, outputs, strict=True) if process.returncode]:
            sys.exit("".join(failed))
        return outputs


def _seconds_per_step(run_dir: Path) -> float:
    """Return the median seconds of a timed step. A moment of other load on the machine does not change the median."""
    seconds = [row["seconds"] for row in read_rows(run_dir / "metrics.jsonl")]
    return float(np.median(np.diff(seconds)[UNTIMED - 1 :]))


@report_user_errors(())
def main() -> None:
    """Measure, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one link and two settings; docs/ is left as it is")
    quick = parser.parse_args().quick
    links, settings = (LINKS[-2:-1], SETTINGS[:2]) if quick else (LINKS, SETTINGS)
    measurements: list[SettingMeasurement] = []
    measured_links: list[LinkMeasurement] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory, two_hosts() as hosts:
        benchmark = NetworkBenchmark(hosts, Path(directory))
        benchmark.measure_computing()  # builds the cache
        for mbit in links:
            hosts.limit(mbit)
            link = LinkMeasurement(mbit, *benchmark.measure_link(), benchmark.measure_computing())
            measured_links.append(link)
            for setting in settings:
                seconds = benchmark.measure_training(setting)
                predicted = predict_step_seconds(setting, benchmark.read_shapes(), link)
                measurements.append(SettingMeasurement(mbit, setting.name, seconds, predicted))
                print(f"{mbit} Mbit/s, {setting.name}: {seconds:.3f} s a step, predicted {predicted:.3f}", flush=True)
        gradient_bytes = sum(4 * int(np.prod(shape)) for shape in benchmark.read_shapes())
    destination = Path(tempfile.mkdtemp()) if quick else Path("docs")
    print(write_report(destination, measurements, measured_links, gradient_bytes))


if __name__ == "__main__":
    main()
