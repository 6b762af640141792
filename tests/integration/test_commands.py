"""The commands as a user types them: their files, their output and their exit codes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.training.rows import read_rows
from tests.conftest import in_matrix, wait_until

TINY = ["data.train_examples=300", "data.validation_examples=60", "train.steps=12", "train.log_every=4"]
TINY += ["model.layers=1"]
TINY_IMAGES = ["model=convnet", "train.steps=12", "train.log_every=4"]  # starts in half the time
TEMPORARY = "temporary"  # the directory of the commands' temporary files
ENDLESS = ["model=convnet", "train.steps=1000000", "train.log_every=4"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the commands, which write runs/ and cache/ there."""
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def command(workplace: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs a command."""

    (workplace / TEMPORARY).mkdir()
    environment = {**os.environ, "TMPDIR": str(workplace / TEMPORARY)}

    def call(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=240, env=environment)

    return call


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def finished(workplace: Path, command: Command) -> dict[str, tuple[Path, subprocess.CompletedProcess[str]]]:
    """One completed run of each framework."""
    runs = {}
    for framework, strategy in (("torch", "ddp"), ("tf", "mirrored")):
        run_dir = workplace / "runs" / framework
        arguments = (f"strategy={strategy}", "strategy.replicas=2", f"run_dir={run_dir}", "train.eval_every=8", *TINY)
        runs[framework] = run_dir, command(f"{framework}_impl.train", *arguments)
    return runs


@pytest.mark.usefixtures("finished")
def test_a_run_leaves_no_temporary_files(workplace: Path) -> None:
    """AutoGraph, for example, writes the code that it generates to files."""
    names = [path.name for path in (workplace / TEMPORARY).rglob("*")]
    assert not [name for name in names if name.startswith(("__autograph_generated_file", "lockstep-"))]


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_a_run_writes_the_files_of_the_readme(finished: dict[str, Any], framework: str) -> None:
    run_dir, result = finished[framework]
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""  # no framework chatter
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert (summary["framework"], summary["replicas"], summary["steps"]) == (framework, 2, 12)
    assert len(summary["peak_memory_bytes"]) == 2 and min(summary["peak_memory_bytes"]) > 1e7
    assert summary["examples_per_second"] > 0
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert (
        rows[9]["examples"] == 300 and rows[10]["examples"] == 332
    )  # step 10 has the last, smaller batch of the epoch
    assert rows[-1]["seconds"] > rows[0]["seconds"] > 0
    evals = read_rows(run_dir / "evals.jsonl")
    assert [(row["step"], row["count"]) for row in evals] == [(8, 60), (12, 60)]
    assert summary["final_loss"] == rows[-1]["loss"] and summary["accuracy"] == evals[-1]["accuracy"]
    assert "step 12/12" in (run_dir / "train.log").read_text()
    assert "completed" in result.stdout and str(run_dir) in result.stdout


def test_both_sides_draw_the_same_tags(finished: dict[str, Any]) -> None:
    tags = []
    for run_dir, _ in finished.values():
        events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
        tags.append(sorted(events.Tags()["scalars"]))
        assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 13))
    assert tags[0] == tags[1]
    assert {"train/loss", "validation/accuracy"} <= set(tags[0])


def test_the_final_model_loads_whichever_side_trained_it(finished: dict[str, Any]) -> None:
    from transformers import AutoTokenizer, BertForSequenceClassification

    weights = [load_file(run_dir / "model" / "model.safetensors") for run_dir, _ in finished.values()]
    assert max(np.abs(weights[0][name] - weights[1][name]).max() for name in weights[0]) <= 1e-5
    for run_dir, _ in finished.values():
        model: Any = BertForSequenceClassification.from_pretrained(run_dir / "model")
        trained = load_file(run_dir / "model" / "model.safetensors")
        assert all(np.array_equal(parameter.detach(), trained[name]) for name, parameter in model.named_parameters())
        tokenizer = AutoTokenizer.from_pretrained(run_dir / "model")
        assert model(**tokenizer("All dogs run.", "A dog runs.", return_tensors="pt")).logits.shape == (1, 3)


KERAS_HUB = """
import sys
import numpy as np
from keras_hub.models import BertBackbone
from safetensors.numpy import load_file

directory, inputs = sys.argv[1], np.load(sys.argv[2])
backbone = BertBackbone.from_preset(directory)
pooled = backbone({name: inputs[name] for name in ("token_ids", "segment_ids", "padding_mask")})["pooled_output"]
weights = load_file(f"{directory}/model.safetensors")  # KerasHub has no converter for the head
np.save(sys.argv[3], np.asarray(pooled) @ weights["classifier.weight"].T + weights["classifier.bias"])
"""


def test_an_exported_model_has_equal_logits_in_transformers_and_keras_hub(
    finished: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, BertForSequenceClassification

    run_dir, _ = finished["tf"]
    out = tmp_path / "exported"
    result = command("common.export", str(run_dir), str(out), "--best")
    assert result.returncode == 0 and str(out) in result.stdout, result.stderr
    tokens = AutoTokenizer.from_pretrained(out)(["All dogs run.", "No."], ["A dog runs.", "A man."], padding=True)
    torch_inputs = tokens.convert_to_tensors("pt")
    logits = BertForSequenceClassification.from_pretrained(out).eval()(**torch_inputs).logits.detach().numpy()
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    inputs: dict[str, Any] = {keras_name: torch_inputs[name].numpy() for keras_name, name in names.items()}
    np.savez(tmp_path / "inputs.npz", **inputs)
    script = [sys.executable, "-c", KERAS_HUB, str(out), str(tmp_path / "inputs.npz"), str(tmp_path / "logits.npy")]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert np.abs(np.load(tmp_path / "logits.npy") - logits).max() <= 1e-6
    assert np.ptp(logits) > 0.001


def test_compare_finds_the_two_in_lockstep(finished: dict[str, Any], command: Command, workplace: Path) -> None:
    result = command("common.compare", "--check")
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads((workplace / "report.json").read_text())["verdict"] == "lockstep"
    assert (workplace / "report.html").exists()


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("torch_impl.train", ["strategy=horovod"], ["strategy=horovod", "single, dp, ddp, allreduce"]),
        in_matrix("tf_impl.train", ["strategy=horovod"], ["strategy=horovod", "single, mirrored, multiworker"]),
        in_matrix("torch_impl.train", ["strategy=mirrored"], ["python -m tf_impl.train strategy=mirrored"]),
        ("tf_impl.train", ["strategy=dp"], ["python -m torch_impl.train strategy=dp"]),
        in_matrix("torch_impl.train", ["strategy=ddp", "strategy.replicas=0"], ["strategy.replicas=0", "at least 1"]),
        in_matrix("tf_impl.train", ["train.epoch=1"], ["train.epoch", "no such key"]),
        in_matrix("tf_impl.train", ["data=files"], ["data.train=..."]),
        ("torch_impl.train", ["data=files", "data.train=no.csv", "data.validation=no.csv"], ["data.train", "no.csv"]),
        in_matrix(
            "torch_impl.train", ["model=pretrained", "model.checkpoint=/etc"], ["model.checkpoint", "config.json"]
        ),
        in_matrix("torch_impl.train", ["run_dir=/dev/null/x"], ["run_dir=/dev/null", "cannot be written"]),
        in_matrix("tf_impl.train", ["run_name=a/b"], ["run_name=a/b", "path separators"]),
        ("common.prepare", ["train.max_length=513"], ["train.max_length=513", "512 positions"]),
    ],
)
def test_a_mistake_is_one_line(
    command: Command, workplace: Path, module: str, arguments: list[str], words: list[str]
) -> None:
    before = sorted(workplace.rglob("*"))
    result = command(module, *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr
    assert sorted(workplace.rglob("*")) == before  # nothing was started or written


def test_debug_shows_the_stack_trace(command: Command) -> None:
    result = command("torch_impl.train", "--debug", "strategy=mirrored")
    assert result.returncode == 2 and "Traceback" in result.stderr


def test_help_lists_groups_and_keys(command: Command) -> None:
    shown = command("torch_impl.train", "--help").stdout
    assert "strategy: allreduce, central_storage, ddp, dp, fsdp, mirrored" in shown and "global_batch_size: 32" in shown
    assert "global_batch_size: 32" in command("tf_impl.train", "--cfg", "job").stdout


@pytest.mark.parametrize(("framework", "strategy"), [("torch", "dp"), in_matrix("tf", "mirrored")])
def test_bfloat16_and_dropout_train(
    command: Command, finished: dict[str, Any], tmp_path: Path, framework: str, strategy: str
) -> None:
    changed = ("train.precision=bfloat16", "model.dropout=0.1", f"run_dir={tmp_path}", *TINY)
    result = command(f"{framework}_impl.train", f"strategy={strategy}", "strategy.replicas=2", *changed)
    assert result.returncode == 0 and result.stderr == ""
    exact = [row["loss"] for row in read_rows(finished[framework][0] / "metrics.jsonl")]
    losses = [row["loss"] for row in read_rows(tmp_path / "metrics.jsonl")]
    assert losses != exact
    assert np.abs(np.array(losses) - exact).max() < 0.1


def test_a_sweep_makes_a_run_directory_for_each_job(command: Command, tmp_path: Path) -> None:
    arguments = ("-m", "train.seed=1,2", "run_name=sweep", *TINY_IMAGES)
    result = command("torch_impl.train", *arguments)
    assert result.returncode == 0, result.stderr
    names = re.findall(r"run directory: runs/sweeps/[0-9-]+/(\S+)", result.stdout)
    assert names == ["sweep-seed=1", "sweep-seed=2"]


@pytest.mark.matrix  # CI starts it on two hosts
def test_torchrun_starts_the_same_file(workplace: Path) -> None:
    train = Path(__file__).parents[2] / "torch_impl" / "train.py"
    run_dir = workplace / "runs" / "torchrun"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*launcher, str(train), "strategy=ddp", f"run_dir={run_dir}", *TINY_IMAGES],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["replicas"], summary["steps"]) == ("completed", 2, 12)


def test_a_loss_that_is_not_finite_stops_the_run(command: Command, workplace: Path) -> None:
    run_dir = workplace / "runs" / "diverged"
    arguments = ("optimizer=sgd", "optimizer.learning_rate=1e30", f"run_dir={run_dir}", *TINY_IMAGES)
    result = command("torch_impl.train", *arguments)
    assert result.returncode == 1
    error = re.search(r"step (\d+): the loss is (nan|inf).* training examples \[(.*?)\]", result.stderr)
    assert error and len(error[3].split(",")) == 32
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert len(read_rows(run_dir / "metrics.jsonl")) == int(error[1]) - 1


@pytest.fixture
def endless(workplace: Path, tmp_path: Path) -> Iterator[Callable[[str, str], tuple[subprocess.Popen[str], Path]]]:
    """A function that starts a run without an end and waits until it has recorded steps."""
    started: list[subprocess.Popen[str]] = []

    def start(framework: str, strategy: str) -> tuple[subprocess.Popen[str], Path]:
        run_dir = tmp_path / "run"
        arguments = [f"strategy={strategy}", "strategy.replicas=2", f"run_dir={run_dir}", *ENDLESS]
        process = subprocess.Popen(
            [sys.executable, "-m", f"{framework}_impl.train", *arguments],
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        wait_until(lambda: process.poll() is not None or len(read_rows(run_dir / "metrics.jsonl")) >= 8)
        assert process.poll() is None
        return process, run_dir

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("framework", "strategy", "signum"),
    [("torch", "ddp", signal.SIGINT), in_matrix("tf", "mirrored", signal.SIGTERM)],  # as in tests/faults
)
def test_a_signal_ends_every_process_and_keeps_the_files(
    endless: Callable[[str, str], tuple[subprocess.Popen[str], Path]], framework: str, strategy: str, signum: int
) -> None:
    process, run_dir = endless(framework, strategy)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == (2 if framework == "torch" else 1)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 128 + signum, output
    assert not psutil.wait_procs(children, timeout=60)[1]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, summary["steps"] + 1))


@pytest.mark.survives("SIGKILL of the command: no process is left")
def test_no_process_survives_a_killed_command(
    endless: Callable[[str, str], tuple[subprocess.Popen[str], Path]],
) -> None:
    process, _ = endless("torch", "ddp")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    process.kill()
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_a_killed_rank_fails_the_run_and_is_named(
    endless: Callable[[str, str], tuple[subprocess.Popen[str], Path]],
) -> None:
    process, run_dir = endless("torch", "ddp")
    ranks = psutil.Process(process.pid).children()
    max(ranks, key=lambda rank: rank.pid).kill()
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "rank 1 ended with signal SIGKILL" in output
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "failed"
    assert not psutil.wait_procs(ranks, timeout=60)[1]


def test_a_terminal_gets_a_progress_bar(workplace: Path) -> None:
    main, other = pty.openpty()
    run_dir = workplace / "runs" / "terminal"
    with subprocess.Popen(
        [sys.executable, "-m", "torch_impl.train", f"run_dir={run_dir}", *TINY_IMAGES],
        cwd=workplace,
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                piece = os.read(main, 4096)
            except OSError:  # the terminal closes with its last user
                break
            if not piece:
                break
            shown += piece
    os.close(main)
    assert process.returncode == 0
    assert "12/12" in shown.decode() and "examples/s" in shown.decode()
    assert "step 8/12" not in shown.decode()  # such lines go to train.log
    assert "step 8/12" in (run_dir / "train.log").read_text()
