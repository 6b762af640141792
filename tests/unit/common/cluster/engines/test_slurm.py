from dataclasses import replace
from pathlib import Path

import pytest

from common.cluster.engines.slurm import discover
from common.cluster.topology import HostGroup
from common.config.clusters import SlurmSettings
from common.errors import UserError

CLUSTER = SlurmSettings("slurm", 120.0, None)
JOB = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NUM_NODES": "2"}
STEP = {**JOB, "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake `scontrol` on the path that knows two lists of nodes."""
    command = tmp_path / "scontrol"
    command.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n" && exit\n'
        '[ "$*" = "show hostnames n5" ] && echo n5 && exit\necho "Invalid hostlist: $3" >&2\nexit 1\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    return command


def test_the_nodes_of_a_step(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {("n1", "n2"): ("10.0.0.1", "10.0.0.2")}
    monkeypatch.setattr("common.cluster.engines.slurm.resolve_addresses", lambda hosts, node: seen[hosts])
    expected = HostGroup(("10.0.0.1", "10.0.0.2"), 1, 10_000 + 1234 % 110 * 200)
    assert discover(CLUSTER, "ddp", "torch", STEP) == expected
    assert discover(SlurmSettings("slurm", 120.0, 4000), "ddp", "torch", STEP) == replace(expected, port=4000)


def test_one_node_is_this_machine(scontrol: Path) -> None:
    one = {**JOB, "SLURM_STEP_NODELIST": "n5", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
    assert discover(CLUSTER, "ddp", "torch", one) == HostGroup()
    assert discover(CLUSTER, "ddp", "torch", {**JOB, "SLURM_JOB_NUM_NODES": "1"}) == HostGroup(), (
        "a command in the batch script of one node runs on this machine"
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {},
            "cluster=slurm: SLURM_JOB_ID is not set; start with srun --ntasks-per-node=1 in a job, or use "
            "cluster=local",
        ),
        (
            JOB,
            "cluster=slurm: SLURM_STEP_NODELIST, SLURM_STEP_NUM_TASKS, SLURM_NODEID is not set; start with srun "
            "--ntasks-per-node=1",
        ),
        (
            {**STEP, "SLURM_STEP_NUM_TASKS": "4"},
            "SLURM_STEP_NUM_TASKS=4: there are 2 nodes; start with srun --ntasks=2 --ntasks-per-node=1",
        ),
        (
            {**STEP, "SLURM_STEP_NODELIST": "n[1"},
            "SLURM_STEP_NODELIST=n[1: scontrol show hostnames fails (Invalid hostlist: n[1); install scontrol",
        ),
        (
            {**STEP, "RANK": "0"},
            "cluster=slurm and RANK disagree on who takes part; use cluster=env, or unset RANK",
        ),
    ],
)
def test_bad_input(scontrol: Path, environment: dict[str, str], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        discover(CLUSTER, "ddp", "torch", environment)
    assert str(raised.value) == expected


def test_no_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UserError, match=r"^SLURM_STEP_NODELIST=n\[1-2\]: scontrol show hostnames fails \(.*No such file"
    ):
        discover(CLUSTER, "ddp", "torch", STEP)
