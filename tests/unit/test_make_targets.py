"""The targets of the Makefile name all tests of faults and of the matrix, and their processes write bytecode."""

import os
import re
import subprocess

from tests.conftest import ROOT


def test_faults_of_integration_tests_are_caused() -> None:
    """`make test-faults` names the files of tests/integration, because collecting all of them takes long."""
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-faults:")[2].partition("\n\n")[0]
    files = [path for path in (ROOT / "tests" / "integration").glob("*.py") if "pytest.mark.faults" in path.read_text()]
    assert len(files) == 2
    assert not [path.name for path in files if f"tests/integration/{path.name}" not in recipe]


def test_tests_of_the_matrix_run_before_a_release() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-faults-all:")[2].partition("\n\n")[0]
    marked = [
        path for path in (ROOT / "tests").rglob("test_*.py") if re.search("in_matrix|mark.matrix", path.read_text())
    ]
    directories = {path.relative_to(ROOT / "tests").parts[0] for path in marked}
    assert directories >= {"faults", "integration", "unit"}
    assert not [name for name in directories if f"tests/{name}" not in recipe]


def test_bytecode_is_written() -> None:
    """Modules are not compiled at installation. Without bytecode, every process would compile what it imports."""
    target = "bytecode:\n\t@echo value: $$PYTHONDONTWRITEBYTECODE"
    command = ["make", "--silent", "--no-print-directory", "--eval", target, "bytecode"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    assert subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout == "value:\n"
