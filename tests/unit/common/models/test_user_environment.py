"""The check of a user's model in the environment that trains it: when it is repeated, and its errors."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from common.models.user_environment import check_in_environment
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig

MODEL = """
import os
from pathlib import Path
from torch import nn

def build():
    Path("builds").open("a").write(f"{os.getpid()} ")
    return nn.Linear(5, 3)
"""


@pytest.mark.slow
def test_a_model_is_checked_again_when_its_code_changes(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    x = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    np.savez("arrays.npz", x=x, labels=np.arange(12) % 3)
    Path("my_model.py").write_text(MODEL)
    overrides = ("model.torch=my_model:build", "data.train=arrays.npz", "data.validation=arrays.npz")
    config = make_config("model=custom", "data=arrays", *overrides)
    config, inputs = prepare_inputs(replace(config, python=sys.executable), None)

    def count_checks(cache_dir: str = config.cache_dir) -> int:
        """Check the model, and return the number of processes that have built it."""
        changed = replace(config, cache_dir=cache_dir)
        check_in_environment(changed, "torch", inputs.cache, inputs.initial, {"torch": "2"})
        return len({*Path("builds").read_text().split()})

    first = count_checks()
    assert count_checks() == first
    Path("my_model.py").write_text(MODEL + "# changed\n")  # the weights of a bundle do not change with the code
    assert count_checks() == first + 1
    assert count_checks("missing") == first + 2  # as for a directory that this user cannot write
    Path("my_model.py").write_text("import missing_package\n")
    expected = rf"^python={sys.executable}: in that environment, model.torch=my_model:build: importing it raised "
    with pytest.raises(UserError, match=expected):
        count_checks()
