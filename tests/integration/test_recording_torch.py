"""Tests of the recorder in PyTorch scripts as users write them: the losses do not change, and the record is complete.

The scripts run in the process of the tests, because starting a process takes longer than a script.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from safetensors.numpy import load_file

from common.cluster.network import find_loopback_interface
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
SCRIPTS = ROOT / "tests" / "scripts"
STEPS = 3


def run_script(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return the lines with losses that a script prints."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    capsys.readouterr()
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    return [line for line in capsys.readouterr().out.splitlines() if "loss " in line]


def read_record(directory: Path) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """Return record.json and the tensors at the start and after each step."""
    files = ["start", *(f"step-{step:08d}" for step in range(1, STEPS + 1))]
    facts: dict[str, Any] = json.loads((directory / "record.json").read_text())
    return facts, [load_file(directory / f"{name}.safetensors") for name in files]


def list_names(tensors: dict[str, np.ndarray], prefix: str) -> set[str]:
    return {name.removeprefix(f"{prefix}/") for name in tensors if name.startswith(f"{prefix}/")}


def check_record(facts: dict[str, Any], files: list[dict[str, np.ndarray]], micro_batches: int) -> None:
    assert facts["complete"]
    assert [step["micro_batches"] for step in facts["steps"]] == [micro_batches] * STEPS
    variables, optimizer = facts["model"]["variables"], facts["optimizer"]
    updated = {name for group in optimizer["groups"] for name in group["parameters"]}
    assert updated == {name for name, variable in variables.items() if variable["trainable"]}
    assert (optimizer["missing"], optimizer["frozen"]) == ([], [])
    for tensors in files:
        assert list_names(tensors, "weight") == set(variables)
    for tensors in files[1:]:
        assert list_names(tensors, "gradient") == updated
        assert all(f"batch/{number}/label" in "".join(tensors) for number in range(micro_batches))
    assert list_names(files[1], "slot") and not list_names(files[2], "slot") and not list_names(files[3], "slot")
    assert list_names(files[1], "layer") and not list_names(files[2], "layer")


@pytest.mark.parametrize(
    ("name", "arguments", "micro_batches", "autocast", "scheduler"),
    [
        ("torch_loop.py", [], 1, None, "OneCycleLR"),
        ("torch_loop.py", ["--amp", "--accumulate=2"], 2, "bfloat16", "OneCycleLR"),
        ("accelerate_loop.py", [], 2, "bfloat16", "LambdaLR"),
        ("trainer.py", [], 2, None, "LambdaLR"),
        ("lightning_module.py", [], 2, None, "StepLR"),
    ],
)
def test_a_recorded_script_prints_the_same_losses(
    name: str,
    arguments: list[str],
    micro_batches: int,
    autocast: str | None,
    scheduler: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = run_script(name, arguments, monkeypatch, capsys)
    recorded = run_script(name, [*arguments, "--record", str(tmp_path)], monkeypatch, capsys)
    assert alone == recorded
    assert len(alone) >= 6
    facts, files = read_record(tmp_path)
    check_record(facts, files, micro_batches)
    assert facts["environment"]["flags"]["autocast"] == autocast
    assert facts["scheduler"]["name"].endswith(f".{scheduler}")
    assert facts["loss"]["name"] == "cross_entropy"
    assert [len(step["losses"]) for step in facts["steps"]] == [micro_batches] * STEPS
    assert all(step["max_norm"] for step in facts["steps"])
    assert not any(list_names(tensors, "gradient_unclipped") for tensors in files)  # clip_factors stand for them
    clipped = [tensors for step, tensors in zip(facts["steps"], files[1:], strict=True) if step.get("clip_factors")]
    for tensors in clipped:
        norm = np.sqrt(sum(np.sum(tensors[key] ** 2.0) for key in tensors if key.startswith("gradient/")))
        assert norm == pytest.approx(facts["steps"][0]["max_norm"], rel=1e-4)


def run_in_group(command: list[str], env: dict[str, str]) -> str:
    """Return the output of a command. Its processes end with it, also if it takes too long."""
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=240)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0
    return output


def test_ranks_record_their_gradients_before_the_reduction(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command.append(str(SCRIPTS / "torch_ddp.py"))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": find_loopback_interface(),
    }
    with ThreadPoolExecutor() as pool:
        outputs = pool.map(
            lambda arguments: run_in_group([*command, *arguments], env), ([], ["--record", str(tmp_path)])
        )
        alone, recorded = ([line for line in output.splitlines() if line.startswith("loss ")] for output in outputs)
    assert len(alone) == 12
    assert alone == recorded
    ranks = [read_record(tmp_path / f"rank-{rank}") for rank in range(2)]
    for rank, (facts, files) in enumerate(ranks):
        assert (facts["rank"], facts["world_size"], facts["not_recorded"]) == (rank, 2, [])
        check_record(facts, files, 1)
    (_, first), (_, second) = ranks
    for name in list_names(first[1], "gradient"):
        local = torch.from_numpy(first[1][f"gradient_local/{name}"] + second[1][f"gradient_local/{name}"])
        torch.testing.assert_close(local / 2, torch.from_numpy(first[1][f"gradient/{name}"]), rtol=1e-5, atol=1e-7)
    assert not any(list_names(tensors, "gradient_local") for tensors in (*first[2:], *second[2:]))
    for rank_0, rank_1 in zip(first[1:], second[1:], strict=True):
        assert not np.array_equal(rank_0["batch/0/input/0"], rank_1["batch/0/input/0"])
