"""The examples of docs/extending.md: kinds outside the repository train in both frameworks, in lockstep."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.two_hosts import ADDRESSES, TwoHosts
from common.training.rows import read_rows
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
LAB = ROOT / "docs" / "examples" / "lab"
TRAIN = (sys.executable, "-m", "torch_impl.train", "--config-dir", "../lab/conf", "experiment=toy")
ONE_HOST = {"MY_CLUSTER_HOSTS": "10.0.0.1", "MY_CLUSTER_NODE": "0"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory next to a copy of the example."""
    parent = tmp_path_factory.mktemp("extensions")
    shutil.copytree(LAB, parent / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    (parent / "work").mkdir()
    return parent / "work"


def make_environment(**variables: str) -> dict[str, str]:
    """Return the environment of the commands, in which `python` is this interpreter."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": "../lab", **variables}


def train(workplace: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command of one framework. It is enough for tests that end before a process starts."""
    command, variables = (*TRAIN, *arguments), make_environment(**{**ONE_HOST, **variables})
    return subprocess.run(command, cwd=workplace, env=variables, capture_output=True, text=True, timeout=120)


def test_the_page_shows_the_example_as_it_is() -> None:
    shown = re.findall(r"^\[`([^`]+)`\]\(examples/lab/\1\)\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    kinds = {"stripes", "mlp", "mlp_torch", "mlp_tf", "sequential", "sequential_torch", "my_cluster", "toy"}
    assert {Path(name).stem for name, _ in shown} == kinds
    for name, code in shown:
        assert code in (LAB / name).read_text(), name
    key = re.search(r"^## A config key.*?```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert key and f"    {key[1]}" in (LAB / "toy" / "mlp.py").read_text()


@pytest.mark.slow
def test_the_commands_of_the_page_train_in_lockstep(workplace: Path) -> None:
    (commands,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    run = ["bash", "-e", "-c", commands]
    done = subprocess.run(run, cwd=workplace, env=make_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\nlockstep: 4 runs agree at all 60 steps" in done.stdout

    runs = {path.name: path for path in (workplace / "runs").iterdir()}
    assert set(runs) == {"torch", "tf", "torch_single", "tf_single"}
    rows = {name: read_rows(path / "metrics.jsonl") for name, path in runs.items()}
    losses = {name: np.array([row["loss"] for row in run_rows]) for name, run_rows in rows.items()}
    for other in losses.values():
        assert len(other) == 60
        np.testing.assert_allclose(other, losses["torch_single"], rtol=0, atol=1e-14)
    summaries = {name: json.loads((path / "summary.json").read_text()) for name, path in runs.items()}
    assert {summary["accuracy"] for summary in summaries.values()} == {1.0}
    assert [(summaries[name]["strategy"], summaries[name]["replicas"]) for name in ("torch", "tf")] == [
        ("sequential", 3),
        ("sequential", 2),
    ]


@pytest.mark.slow
def test_the_engine_finds_two_hosts(workplace: Path, hosts: TwoHosts) -> None:
    """Train the new data and model with a built-in strategy on two hosts, which are network namespaces."""
    arguments = ("strategy=ddp", "strategy.replicas=2", "train.steps=3", "run_dir=runs/hosts", "cluster.timeout=60")
    processes = [
        subprocess.Popen(
            hosts.wrap_command(node, [*TRAIN, *arguments]),
            cwd=workplace,
            env=make_environment(MY_CLUSTER_HOSTS=",".join(ADDRESSES), MY_CLUSTER_NODE=str(node)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    assert errors == ["", ""]
    assert len(read_rows(workplace / "runs" / "hosts" / "metrics.jsonl")) == 3


def test_help_lists_the_added_kinds(workplace: Path) -> None:
    shown = train(workplace, "--help").stdout
    for group, kind in (("data", "stripes"), ("model", "mlp"), ("strategy", "sequential"), ("cluster", "my_cluster")):
        assert re.search(rf"^{group}: .*\b{kind}\b", shown, re.MULTILINE), shown
    assert "\ndata.angles: at least 2 and at most 4\n" in shown
    assert "\nmodel.hidden_size (mlp): at least 1 and at most 512\n" in shown
    assert "\nmodel.hidden_size (bert, convnet): at least 1 and finite\n" in shown


@pytest.mark.parametrize(
    ("argument", "node", "expected"),
    [
        ("model.hidden_size=0", "0", "model.hidden_size=0: must be at least 1 and at most 512"),
        ("strategy=sequentail", "0", "strategy=sequentail: no such choice; there are single, dp, .*, sequential"),
        ("extensions=[toy.missing]", "0", "extensions: no module toy.missing; add its directory to PYTHONPATH"),
        ("strategy=ddp", "1", "MY_CLUSTER_NODE=1: must be from 0 to 0, an index of MY_CLUSTER_HOSTS"),
    ],
)
def test_a_mistake_is_one_line(workplace: Path, argument: str, node: str, expected: str) -> None:
    done = train(workplace, argument, MY_CLUSTER_NODE=node)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"error: {expected}\n", done.stderr), done.stderr


def test_a_key_has_the_limits_of_its_kind(workplace: Path) -> None:
    """The key of the same name of another kind has other limits, so that only the next check fails."""
    done = train(workplace, "model=convnet", "data=stripes", "model.hidden_size=600", MY_CLUSTER_HOSTS="")
    assert done.stderr.startswith("error: cluster=my_cluster: MY_CLUSTER_HOSTS is not set;")
