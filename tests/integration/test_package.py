"""`pip install .` installs everything that a run needs, in a new environment and an empty directory."""

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

import numpy as np
import pytest

from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL

PACKAGES = ("common", "conf", "torch_impl", "tf_impl")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {"accelerate", "lightning", "pytorch_lightning", "ray", "sacrebleu"}  # imported if the user has installed it
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

Command = Callable[..., subprocess.CompletedProcess[str]]


def call(*command: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables that would extend Python's path."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy without the files of earlier builds."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    has_setuptools = (
        importlib.util.find_spec("setuptools") and int(metadata.version("setuptools").partition(".")[0]) >= 77
    )
    isolation = ["--no-build-isolation"] if has_setuptools else []  # if it is missing or old, pip downloads it
    done = call(*PIP, "wheel", "--no-deps", *isolation, "--wheel-dir", output, source, cwd=output)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(output.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a virtual environment with the wheel and the dependencies of this environment.

    The dependencies are on its path. Lockstep itself is not: this environment may have a .pth file that links to the
    checkout, and Python reads such files only in the site-packages of the running environment.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    interpreter = environment / "bin" / "python"
    done = call(*PIP, "--python", interpreter, "install", "--no-deps", "--no-index", wheel, cwd=environment)
    assert done.returncode == 0, done.stderr
    site_packages = next(environment.glob("lib/python*/site-packages"))
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return environment


@pytest.fixture(scope="module")
def installed(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A function that runs the Python of the environment in an empty directory."""
    workplace = tmp_path_factory.mktemp("empty")
    return lambda *arguments: call(environment / "bin" / "python", *arguments, cwd=workplace)


@pytest.fixture(scope="module")
def directory_with_common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a user with a model, its data, and packages with the same names as those of Lockstep."""
    directory = tmp_path_factory.mktemp("user")
    for package in ("common", "conf"):
        (directory / package).mkdir()
        (directory / package / "__init__.py").touch()
    model = "import torch\n\ndef build():\n    return torch.nn.Linear(4, 3)\n"
    (directory / "my_models.py").write_text(model)
    numbers = np.random.default_rng(0)
    inputs, labels = numbers.random((64, 4), np.float32), numbers.integers(0, 3, 64)
    np.savez(directory / "data.npz", inputs=inputs, labels=labels)
    return directory


def test_the_wheel_has_every_file(wheel: Path) -> None:
    listed = call("git", "ls-files", *PACKAGES, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}
    assert {Path(path).suffix for path in tracked} >= {".py", ".yaml", ".j2"}
    assert tracked - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_wheel_has_nothing_else(wheel: Path) -> None:
    """Any other folder would be installed next to the other packages of the environment."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"lockstep-{PROJECT['version']}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_version_is_written_in_one_place(wheel: Path) -> None:
    assert wheel.name.split("-")[:2] == ["lockstep", PROJECT["version"]]
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".yaml", ".j2")]
    assert [str(path) for path in sources if PROJECT["version"] in path.read_text()] == []


def test_every_import_is_a_dependency() -> None:
    """A package that only another dependency installs may be missing after an update."""
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
        if not declared & {distribution.lower().replace("_", "-") for distribution in distributions[name]}
    }
    assert missing == set()


@pytest.mark.slow
def test_an_installed_wheel_trains_and_compares(installed: Command) -> None:
    imported = installed(
        "-c", f"import {', '.join(PACKAGES)}; print(*(p.__path__[0] for p in ({', '.join(PACKAGES)})))"
    )
    folders = [Path(path) for path in imported.stdout.split()]
    assert [path.name for path in folders] == list(PACKAGES), imported.stderr
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
    assert "uPlot" in (workplace / "report.html").read_text()


@pytest.mark.slow
def test_lockstep_trains_and_compares_beside_packages_of_the_same_names(
    environment: Path, directory_with_common: Path
) -> None:
    lockstep = environment / "bin" / "lockstep"
    data = ("data=arrays", "data.train=data.npz", "data.validation=data.npz")
    train = ("model=custom", "model.torch=my_models:build", *data, "train.steps=2", "strategy.replicas=2")

    done = call(lockstep, "torch", "strategy=ddp", *train, "run_dir=runs/ddp", cwd=directory_with_common)
    assert done.returncode == 0, done.stdout + done.stderr
    done = call(lockstep, "compare", "run=[torch:dp]", *train, cwd=directory_with_common)
    assert done.returncode == 0, done.stdout + done.stderr
    done = call(lockstep, "compare", "--check", cwd=directory_with_common)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lockstep: 2 runs agree at all 2 steps" in done.stdout


def test_the_error_for_a_hidden_package_names_two_ways_out(environment: Path, directory_with_common: Path) -> None:
    python, hides = environment / "bin" / "python", f"error: {directory_with_common / 'common'}: hides Lockstep's"
    for module, command in (("torch_impl.train", "torch"), ("tf_impl.train", "tf")):
        done = call(python, "-m", module, cwd=directory_with_common)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(hides) and done.stderr.count("\n") == 1
        assert f"`lockstep {command} ...`" in done.stderr and "PYTHONSAFEPATH=1" in done.stderr
    environ = ("/usr/bin/env", "PYTHONSAFEPATH=1")
    for way_out in ((environment / "bin" / "lockstep", "torch"), (*environ, python, "-m", "torch_impl.train")):
        done = call(*way_out, "train.stepps=1", cwd=directory_with_common)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: train.stepps: no such key")
