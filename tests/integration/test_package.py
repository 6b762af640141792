"""What `pip install .` installs is all that a run needs: tried in a fresh environment and an empty directory."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL

PACKAGES = ("common", "conf", "torch_impl", "tf_impl")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {"accelerate", "ray"}  # imported where the user has it
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

Command = Callable[..., subprocess.CompletedProcess[str]]


def call(*command: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command, without what the environment would add to Python's path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: what an earlier build has left in the checkout must not come into it."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    has_setuptools = (
        importlib.util.find_spec("setuptools") and int(metadata.version("setuptools").partition(".")[0]) >= 77
    )
    isolation = ["--no-build-isolation"] if has_setuptools else []  # where it is missing or old, pip downloads it
    done = call(*PIP, "wheel", "--no-deps", *isolation, "--wheel-dir", built, source, cwd=built)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Run Python with arguments in an empty directory; it has the wheel and this environment's dependencies.

    It finds the dependencies on its path, but not this environment's own Lockstep: that is installed as a link to the
    checkout, by a file whose like Python reads in its own site-packages only.
    """
    environment, workplace = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    venv.create(environment, symlinks=True)
    interpreter = environment / "bin" / "python"
    done = call(*PIP, "--python", interpreter, "install", "--no-deps", "--no-index", wheel, cwd=workplace)
    assert done.returncode == 0, done.stderr
    site_packages = next(environment.glob("lib/python*/site-packages"))
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return lambda *arguments: call(interpreter, *arguments, cwd=workplace)


def test_the_wheel_has_every_file(wheel: Path) -> None:
    listed = call("git", "ls-files", *PACKAGES, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}
    assert {Path(path).suffix for path in tracked} >= {".py", ".yaml", ".j2"}
    assert tracked - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_wheel_has_nothing_else(wheel: Path) -> None:
    """A name that is not one of these folders would be installed beside every other package of the environment."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"lockstep-{PROJECT['version']}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_version_is_written_in_one_place(wheel: Path) -> None:
    assert wheel.name.split("-")[:2] == ["lockstep", PROJECT["version"]]
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".yaml", ".j2")]
    assert [str(path) for path in sources if PROJECT["version"] in path.read_text()] == []


def test_every_import_is_a_dependency() -> None:
    """What another dependency happens to bring may be gone with its next version."""
    declared = {re.split(r"[<>=;\[ ]", line)[0].lower().replace("_", "-") for line in PROJECT["dependencies"]}
    distributions = metadata.packages_distributions()
    imported = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        if name in distributions and name not in PACKAGES
    }
    assert {"torch", "tensorflow", "numpy"} <= imported
    missing = {
        name
        for name in imported - OPTIONAL
        if not declared & {each.lower().replace("_", "-") for each in distributions[name]}
    }
    assert missing == set()


@pytest.mark.slow
def test_an_installed_wheel_trains_and_compares(installed: Command) -> None:
    found = installed("-c", f"import {', '.join(PACKAGES)}; print(*(p.__path__[0] for p in ({', '.join(PACKAGES)})))")
    folders = [Path(path) for path in found.stdout.split()]
    assert [path.name for path in folders] == list(PACKAGES), found.stderr
    assert {path.parent for path in folders} == {folders[0].parent}
    assert not any(path.is_relative_to(ROOT) for path in folders)

    for framework in ("torch", "tf"):
        run_dir = f"runs/{framework}"
        settings = ("strategy=single", "train.steps=4", *SMALL_CORPUS, *SMALL_MODEL, f"run_dir={run_dir}")
        done = installed("-m", f"{framework}_impl.train", *settings)
        assert done.returncode == 0, done.stdout + done.stderr
    done = installed("-m", "common.compare", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lockstep" in done.stdout

    workplace = Path(installed("-c", "import os; print(os.getcwd())").stdout.strip())
    report = json.loads((workplace / "report.json").read_text())
    assert report["verdict"] == "lockstep"
    assert [run["versions"]["lockstep"] for run in report["runs"]] == [PROJECT["version"]] * 2
    assert (workplace / "report.html").stat().st_size > 100_000  # Plotly is in it
