"""Packages that are hidden from a library while it is imported."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.hidden_packages import hide_packages


@pytest.fixture(autouse=True)
def _imports_are_undone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {*sys.modules}
    yield
    for name in {*sys.modules} - names:
        del sys.modules[name]


def test_a_package_that_is_imported_already_stays_visible(tmp_path: Path) -> None:
    for name in ("early", "late"):
        (tmp_path / f"{name}_package.py").touch()
    (tmp_path / "some_library.py").write_text("import early_package\nimport late_package\n")
    hide_packages("some_library", ("early_package", "late_package"))
    importlib.import_module("early_package")
    expected = r"^some_library cannot be imported without late_package; upgrade some_library$"
    with pytest.raises(ImportError, match=expected) as raised:
        importlib.import_module("some_library")
    assert raised.value.name == "some_library"
    importlib.import_module("late_package")


def test_a_library_is_hidden_from_once(tmp_path: Path) -> None:
    count = len(sys.meta_path)
    for _ in range(2):
        hide_packages("some_library", ("late_package",))
    assert len(sys.meta_path) == count + 1


def test_another_failure_of_the_import_is_not_blamed_on_the_hidden_packages(tmp_path: Path) -> None:
    (tmp_path / "some_library.py").write_text("raise ImportError('libhdf5.so: cannot open')\n")
    hide_packages("some_library", ("late_package",))
    with pytest.raises(ImportError, match=r"^libhdf5\.so: cannot open$"):
        importlib.import_module("some_library")


def test_the_files_of_the_library_are_found(tmp_path: Path) -> None:
    (tmp_path / "some_library").mkdir()
    (tmp_path / "some_library" / "__init__.py").touch()
    (tmp_path / "some_library" / "data.txt").write_text("data")
    hide_packages("some_library", ("late_package",))
    importlib.import_module("some_library")
    assert pkgutil.get_data("some_library", "data.txt") == b"data"
