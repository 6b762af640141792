"""The targets of the Makefile run every test."""

from tests.conftest import ROOT


def test_faults_of_integration_tests_are_caused() -> None:
    """`make test-faults` names the files of tests/integration, because collecting all of them takes long."""
    makefile = (ROOT / "Makefile").read_text()
    files = [path for path in (ROOT / "tests" / "integration").glob("*.py") if "pytest.mark.faults" in path.read_text()]
    assert len(files) == 2
    assert not [path.name for path in files if f" tests/integration/{path.name}" not in makefile.replace("\t", " ")]
