"""The commands of the documentation: those of the README run, and those of the pages have valid configs."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.config.compose import parse_config
from common.config.overrides import normalize_arguments
from common.config.resolve import resolve_config
from common.config.strategies import COMMANDS
from common.config.validate import check_config
from tests.conftest import ROOT, Compose

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
README = re.findall(r"^```console\n(.*?)^```", PAGES[0].read_text(), re.MULTILINE | re.DOTALL)
SHORTER = (  # files of conf with values of the reader's runs, and the values that this test trains with
    ("train.yaml", "steps: 300", "steps: 12"),
    ("experiment/demo.yaml", "steps: 400", "steps: 40"),
    ("experiment/demo.yaml", "eval_every: 100", "eval_every: 10"),
    ("data/builtin_nli.yaml", "train_examples: 24000", "train_examples: 600"),
    ("data/builtin_nli.yaml", "validation_examples: 3000", "validation_examples: 60"),
    ("model/bert_tiny.yaml", "layers: 2", "layers: 1"),
    ("model/bert_tiny.yaml", "hidden_size: 128", "hidden_size: 8"),
    ("model/bert_tiny.yaml", "intermediate_size: 512", "intermediate_size: 16"),
    ("model/bert_tiny.yaml", "max_vocabulary: 8192", "max_vocabulary: 200"),
)
SENTENCES = [("a dog runs", "an animal runs", 0), ("a dog runs", "a dog sings", 1), ("a dog runs", "no dog runs", 2)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the repository with the data and weights of a reader. Its config trains short runs."""
    folder = tmp_path_factory.mktemp("readme")
    for path in ROOT.iterdir():
        if path.name in ("common", "conf", "torch_impl", "tf_impl"):  # a linked package would find the linked conf
            shutil.copytree(path, folder / path.name)
        elif path.name not in (".venv", "runs", "cache", ".git", "report.html", "report.json"):
            (folder / path.name).symlink_to(path)
    for name, value, shorter in SHORTER:
        text = (folder / "conf" / name).read_text()
        assert text.count(value) == 1, name
        (folder / "conf" / name).write_text(text.replace(value, shorter))
    (folder / ".venv").symlink_to(sys.prefix)
    rows = [json.dumps(dict(zip(("premise", "hypothesis", "label"), row, strict=True))) for row in SENTENCES * 40]
    (folder / "train.jsonl").write_text("\n".join(rows))
    (folder / "validation.jsonl").write_text("\n".join(rows[:12]))
    return folder


def get_modification_time(path: Path) -> float:
    return path.stat().st_mtime


@pytest.mark.slow
@pytest.mark.parametrize("block", README)
def test_the_readmes_commands(checkout: Path, block: str) -> None:
    """Run the blocks in their order. Later blocks need the results of earlier ones."""
    ready, sources = ROOT / ".venv" / "ready", [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    if block.startswith("make") and not (
        ready.exists() and ready.stat().st_mtime > max(map(get_modification_time, sources))
    ):
        pytest.skip("make would set up .venv first; use make test-integration")
    if "path/to/checkpoint" in block:
        run = next((checkout / "runs").glob("*-torch-ddp"))
        shutil.copytree(run / "model", checkout / "path" / "to" / "checkpoint")
    block = block.replace("train.steps=100", "train.steps=10")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = f"{Path(sys.prefix, 'bin')}:{env['PATH']}"
    done = subprocess.run(["bash", "-ec", block], cwd=checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    if "common.compare" in block:
        assert "lockstep: " in done.stdout
        assert (checkout / "report.html").exists()


def find_documented_commands() -> list[tuple[str, list[str]]]:
    """Return the framework and the arguments of every documented command that trains."""
    commands = []
    for page in PAGES:
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for framework, command in COMMANDS.items():
                    if line.startswith(f"{command} ") and "--config-dir" not in line:
                        commands.append((framework, shlex.split(line.removeprefix(command), comments=True)))
    return commands


@pytest.mark.parametrize(("framework", "arguments"), find_documented_commands())
def test_the_documentations_commands_are_valid(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, framework: str, arguments: list[str]
) -> None:
    monkeypatch.setattr("common.config.validate.find_spec", lambda name: name)  # extras need not be installed
    overrides = [argument for argument in normalize_arguments(arguments) if not argument.startswith("-")]
    jobs: list[list[str]] = [[]]
    for override in overrides:
        key, _, value = override.partition("=")
        values = value.split(",") if "-m" in arguments else [value]
        jobs = [[*job, f"{key}={value}"] for job in jobs for value in values]
    for job in jobs:
        config = parse_config(composed(*job))
        check_config(config, framework)
        resolve_config(config, hosts=len(getattr(config.cluster, "hosts", [""])))


def test_there_are_commands() -> None:
    assert len(README) >= 4 and len(find_documented_commands()) > 20
