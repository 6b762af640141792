"""Weights of checkpoints."""

import pytest

from common.errors import UserError
from common.models.weight_files import check_weights


def test_a_weight_that_a_checkpoint_lacks_is_named() -> None:
    check_weights({"a": 0, "b": 0}, ["a"])
    with pytest.raises(UserError, match=r"^the checkpoint has no b \(2 missing in all\), which the model has; give a"):
        check_weights({"a": 0}, ["a", "b", "c"])
