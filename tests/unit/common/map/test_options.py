"""The options of the command common.map."""

import pytest

from common.errors import UserError
from common.map.options import load_options


def test_an_interpreter_may_be_below_the_home_directory() -> None:
    options = load_options(["tf.python=~/none", "torch.python=~no-one/none", "inputs={x: float32[2]}"])
    assert (options.tf.python, options.torch.python) == ("~/none", "~no-one/none")


def test_a_section_has_no_value() -> None:
    with pytest.raises(UserError, match=r"^torch: has no value of its own; set one of its keys, torch\.KEY=VALUE"):
        load_options(["torch=models:build", "inputs={x: float32[2]}"])
