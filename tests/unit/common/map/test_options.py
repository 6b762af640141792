"""The options of the command common.map."""

from common.map.options import load_options


def test_an_interpreter_may_be_below_the_home_directory() -> None:
    options = load_options(["tf.python=~/none", "torch.python=~no-one/none", "inputs={x: float32[2]}"])
    assert (options.tf.python, options.torch.python) == ("~/none", "~no-one/none")
