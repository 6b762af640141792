from pathlib import Path

import numpy as np
import pytest

from common.versions import find_versions


def test_versions_of_what_is_not_installed_are_left_out() -> None:
    assert find_versions(["numpy", "no-such-package"]) == {"numpy": np.__version__}


def test_tensorflow_has_several_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = tmp_path / "tensorflow_cpu-2.19.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: 2.19.1\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert find_versions(["tensorflow"]) == {"tensorflow": "2.19.1"}
