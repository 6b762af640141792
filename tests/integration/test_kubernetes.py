"""What the pods of deploy/kubernetes/job.yaml run, in two network namespaces, draws the curve of one replica."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from common.training.rows import read_rows
from tests.conftest import ROOT, in_matrix, wait_until
from tests.integration.test_slurm import SMALL, losses

pytestmark = pytest.mark.slow

PODS = ("train-0", "train-1")
RUNS = {
    "ddp": ("torch", ["strategy=ddp", "strategy.replicas=2"]),
    "multiworker": ("tf", ["strategy=multiworker", "strategy.replicas=2"]),
}


def container() -> dict[str, Any]:
    """Of the manifest."""
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "job.yaml").read_text())
    (job,) = (each for each in manifests if each["kind"] == "Job")
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return dict(found)


@dataclass
class Pods:
    """The two pods, and the volume that they share."""

    hosts: TwoHosts
    volume: Path

    def know(self, pod: int, *others: int) -> None:
        """Write the names that a pod can look up: its own, as kubelet does it, and in place of DNS those of others."""
        lines = ["127.0.0.1 localhost", f"{ADDRESSES[pod]} {PODS[pod]}.train.default.svc.cluster.local {PODS[pod]}"]
        lines += [f"{ADDRESSES[other]} {PODS[other]}.train" for other in others]
        path = Path(f"/etc/netns/{self.hosts.names[pod]}/hosts")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")  # a pod that runs sees it, since the file stays the same

    @contextmanager
    def run(self, name: str, framework: str, arguments: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
        """The container's command in both pods, with another strategy and a small model. At the end it is killed."""
        started: list[subprocess.Popen[str]] = []
        try:
            for pod in range(2):
                started.append(self._start(pod, name, framework, arguments))
            yield started
        finally:
            for process in started:
                with process:
                    process.kill()

    def _start(self, pod: int, name: str, framework: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        python, *rest = (str(each) for each in container()["args"])
        assert (python, rest[:3]) == ("python", ["-m", "torch_impl.train", "strategy=ddp"])
        there = [each.replace("/runs/train", f"/runs/{name}").replace("/runs", str(self.volume)) for each in rest[3:]]
        command = [sys.executable, "-m", f"{framework}_impl.train", *there, *SMALL, *arguments]
        as_pod = ["unshare", "--uts", "sh", "-c", f'hostname {PODS[pod]}; exec "$@"', "sh"]
        environment = {each["name"]: each["value"] for each in container()["env"]}
        return subprocess.Popen(
            self.hosts.wrap_command(pod, [*as_pod, *command]),
            cwd=self.volume,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JOB_COMPLETION_INDEX": str(pod), **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def end(started: Sequence[subprocess.Popen[str]], seconds: float = 150) -> tuple[list[int], list[str]]:
    """Wait for both pods. Returns their exit codes, and what they have said."""
    said = [process.communicate(timeout=seconds)[1] for process in started]
    return [process.returncode for process in started], said


@pytest.fixture
def pods(hosts: TwoHosts, volume: Path) -> Iterator[Pods]:
    found = Pods(hosts, volume)
    try:
        for pod in range(2):
            found.know(pod, 1 - pod)
        yield found
    finally:
        for name in hosts.names:
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def expected(volume: Path) -> np.ndarray:
    """The losses of one replica."""
    command = [sys.executable, "-m", "torch_impl.train", "strategy=single", "train.steps=40", *SMALL]
    command += [f"run_dir={volume / 'single'}", f"cache_dir={volume / 'cache'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return losses(volume / "single")


@pytest.mark.parametrize("name", ["ddp", in_matrix("multiworker")])
def test_two_pods_draw_the_curve_of_one_replica(pods: Pods, expected: np.ndarray, name: str) -> None:
    framework, arguments = RUNS[name]
    with pods.run(name, framework, [*arguments, "train.steps=6"]) as started:
        assert end(started) == ([0, 0], ["", ""])
    found = losses(pods.volume / name)
    assert len(found) == 6
    np.testing.assert_allclose(found[:5], expected[:5], rtol=1e-5)


def test_a_pod_waits_for_the_name_of_the_other(pods: Pods, expected: np.ndarray) -> None:
    pods.know(0)
    with pods.run("late", "torch", [*RUNS["ddp"][1], "train.steps=2"]) as started:
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(8)
        assert not (pods.volume / "late").exists(), "it looks up the names first"
        pods.know(0, 1)
        assert end(started) == ([0, 0], ["", ""])
    np.testing.assert_allclose(losses(pods.volume / "late")[0], expected[0], rtol=1e-5)


def test_a_name_that_stays_unknown(pods: Pods) -> None:
    pods.know(1)
    with pods.run("alone", "torch", [*RUNS["ddp"][1], "cluster.timeout=2"]) as started:
        codes, said = end(started[1:])
    assert codes == [1]  # a mistake would not be tried again
    assert said[0].startswith("error: cluster.timeout=2: train-0.train has no address here (")
    assert said[0].endswith("); see whether its pod runs and its service selects it\n")


@pytest.mark.matrix
def test_pods_that_are_stopped_resume(pods: Pods, expected: np.ndarray) -> None:
    """SIGTERM reaches one of them, as where its node is drained; both are then started again."""
    metrics = pods.volume / "stopped" / "metrics.jsonl"
    arguments = [*RUNS["ddp"][1], "train.steps=40", "train.log_every=1"]
    with pods.run("stopped", "torch", arguments) as started:
        wait_until(lambda: len(read_rows(metrics)) >= 5, 120)
        started[1].send_signal(signal.SIGTERM)
        assert end(started)[0] == [143, 143]
    assert 5 <= len(losses(metrics.parent)) < 40
    with pods.run("stopped", "torch", arguments) as started:
        assert end(started)[0] == [0, 0]
    assert [row["step"] for row in read_rows(metrics)] == list(range(1, 41))
    np.testing.assert_allclose(losses(metrics.parent), expected, rtol=1e-4)
