"""The targets of the Makefile name all files with tests of faults and all directories with tests of the matrix."""

import re

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
