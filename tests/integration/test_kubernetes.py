"""The command of deploy/kubernetes/job.yaml in two network namespaces has the curve of one replica."""

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
from tests.conftest import PACED, ROOT, SMALL_IMAGES, wait_until
from tests.integration.test_slurm import losses

pytestmark = pytest.mark.slow

PODS = ("train-0", "train-1")
RUNS = {
    "ddp": ("torch", ["strategy=ddp", "strategy.replicas=2"]),
    "multiworker": ("tf", ["strategy=multiworker", "strategy.replicas=2"]),
}


def read_container() -> dict[str, Any]:
    """Return the container of the manifest."""
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "job.yaml").read_text())
    (job,) = (manifest for manifest in manifests if manifest["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


@dataclass
class Pods:
    """Two pods that share a volume."""

    hosts: TwoHosts
    volume: Path

    def write_names(self, pod: int, *others: int) -> None:
        """Write the names that a pod can resolve: its own, as kubelet does, and those of other pods, as DNS does."""
        lines = ["127.0.0.1 localhost", f"{ADDRESSES[pod]} {PODS[pod]}.train.default.svc.cluster.local {PODS[pod]}"]
        lines += [f"{ADDRESSES[other]} {PODS[other]}.train" for other in others]
        path = Path(f"/etc/netns/{self.hosts.names[pod]}/hosts")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")  # a running pod sees the change, because the file is not replaced

    @contextmanager
    def run(self, name: str, framework: str, arguments: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
        """Run the command of the container in both pods, with other arguments. At the end the commands are killed."""
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
        container = read_container()
        overrides = [str(argument) for argument in container["args"]]
        assert overrides[:4] == ["python", "-m", "torch_impl.train", "strategy=ddp"]
        overrides = [text.replace("/runs/train", f"/runs/{name}") for text in overrides[4:]]
        overrides = [text.replace("/runs", str(self.volume)) for text in overrides]
        command = [sys.executable, "-m", f"{framework}_impl.train", *overrides, *SMALL_IMAGES, *arguments]
        as_pod = ["unshare", "--uts", "sh", "-c", f'hostname {PODS[pod]}; exec "$@"', "sh"]
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        return subprocess.Popen(
            self.hosts.wrap_command(pod, [*as_pod, *command]),
            cwd=self.volume,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JOB_COMPLETION_INDEX": str(pod), **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def wait_for_end(started: Sequence[subprocess.Popen[str]], seconds: float = 300) -> tuple[list[int], list[str]]:
    """Wait for the pods. Return their exit codes and their standard errors. The timeout only ends a hang."""
    errors = [process.communicate(timeout=seconds)[1] for process in started]
    return [process.returncode for process in started], errors


@pytest.fixture
def pods(hosts: TwoHosts, volume: Path) -> Iterator[Pods]:
    """Two pods that can resolve each other's names."""
    pods = Pods(hosts, volume)
    try:
        for pod in range(2):
            pods.write_names(pod, 1 - pod)
        yield pods
    finally:
        for name in hosts.names:
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def expected(volume: Path) -> np.ndarray:
    """The losses of one replica."""
    command = [sys.executable, "-m", "torch_impl.train", "strategy=single", "train.steps=40", *SMALL_IMAGES]
    command += [f"run_dir={volume / 'single'}", f"cache_dir={volume / 'cache'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return losses(volume / "single")


@pytest.mark.matrix  # CI has two pods of which one starts late
@pytest.mark.parametrize("name", ["ddp", "multiworker"])
def test_two_pods_draw_the_curve_of_one_replica(pods: Pods, expected: np.ndarray, name: str) -> None:
    framework, arguments = RUNS[name]
    with pods.run(name, framework, [*arguments, "train.steps=6"]) as started:
        assert wait_for_end(started) == ([0, 0], ["", ""])
    pod_losses = losses(pods.volume / name)
    assert len(pod_losses) == 6
    np.testing.assert_allclose(pod_losses[:5], expected[:5], rtol=1e-5)


def test_a_pod_waits_for_the_name_of_the_other(pods: Pods, expected: np.ndarray) -> None:
    pods.write_names(0)
    with pods.run("late", "torch", [*RUNS["ddp"][1], "train.steps=6"]) as started:
        # A pod that did not wait would usually have ended by then. A slow machine does not fail the test.
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(8)
        assert not (pods.volume / "late").exists(), "a pod resolves the names before it writes"
        pods.write_names(0, 1)
        assert wait_for_end(started) == ([0, 0], ["", ""])
    pod_losses = losses(pods.volume / "late")
    assert len(pod_losses) == 6
    np.testing.assert_allclose(pod_losses[:5], expected[:5], rtol=1e-5)


def test_a_name_that_stays_unknown(pods: Pods) -> None:
    pods.write_names(1)
    with pods.run("alone", "torch", [*RUNS["ddp"][1], "cluster.timeout=2"]) as started:
        codes, errors = wait_for_end(started[1:])
    assert codes == [1]  # not 2, the code of a mistake, after which Kubernetes does not restart the pod
    assert errors[0].startswith("error: cluster.timeout=2: train-0.train has no address here (")
    assert errors[0].endswith("); see whether its pod runs and its service selects it\n")


@pytest.mark.matrix
def test_pods_that_are_stopped_resume(pods: Pods, expected: np.ndarray) -> None:
    """Send SIGTERM to one pod, as when its node is drained. Then start both again."""
    metrics = pods.volume / "stopped" / "metrics.jsonl"
    arguments = [*RUNS["ddp"][1], "train.steps=40", "train.log_every=1", PACED]
    with pods.run("stopped", "torch", arguments) as started:
        wait_until(lambda: len(read_rows(metrics)) >= 5)
        started[1].send_signal(signal.SIGTERM)
        assert wait_for_end(started)[0] == [143, 143]
    assert 5 <= len(losses(metrics.parent)) < 40
    with pods.run("stopped", "torch", arguments) as started:
        assert wait_for_end(started)[0] == [0, 0]
    assert [row["step"] for row in read_rows(metrics)] == list(range(1, 41))
    np.testing.assert_allclose(losses(metrics.parent), expected, rtol=1e-4)
