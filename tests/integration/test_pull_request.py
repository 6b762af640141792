"""The commands of docs/examples/pull_request.yml in their order, as GitHub runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

WORKFLOW = ROOT / "docs" / "examples" / "pull_request.yml"
STEPS: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["curve"]["steps"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository after the commands before the comparison. Its baseline is the run of these commands."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "tests").mkdir()
    run_step("Train", folder)
    shutil.copy(folder / "runs" / "now" / "metrics.jsonl", folder / "tests" / "baseline.jsonl")
    return folder


def run_step(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a step of the workflow. Only the comparison may fail."""
    (command,) = [step["run"] for step in STEPS if step.get("name") == name]
    variables = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "PYTHONPATH": str(ROOT)}
    env = {**os.environ, **variables, "PATH": f"{Path(sys.prefix, 'bin')}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0 or name == "Compare", done.stderr
    return done


def test_a_changed_curve_fails_the_pull_request(checkout: Path) -> None:
    unchanged = run_step("Compare", checkout)
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    run_step("Show the report", checkout)
    summary = checkout / "summary.md"
    assert summary.read_text().startswith("**✅ same curve, experiment unknown")

    baseline = checkout / "tests" / "baseline.jsonl"
    rows = [json.loads(line) for line in baseline.read_text().splitlines()]
    rows[199]["loss"] += 2e-4
    baseline.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary.unlink()
    changed = run_step("Compare", checkout)
    assert changed.returncode == 1 and "step 200" in changed.stdout, changed.stdout + changed.stderr
    run_step("Show the report", checkout)
    assert summary.read_text().startswith("**❌ different curve, experiment unknown")


def test_the_report_is_shown_and_kept_after_every_comparison() -> None:
    later_steps = STEPS[[step.get("name") for step in STEPS].index("Compare") + 1 :]
    assert [step["if"] for step in later_steps] == ["always()", "always()"]
    assert later_steps[1]["with"]["path"] == "report"
