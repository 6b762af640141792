"""Dropout that cannot be drawn as the framework does."""

import pytest

from common.errors import UserError
from common.map.description import ModelDescription
from common.models.user_noise import check_noise


def test_native_dropout_of_keras_2_is_refused() -> None:
    description = ModelDescription([], {}, [], False, unaligned_noise=["gru (GRU)"], is_keras_two=True)
    with pytest.raises(UserError, match=r"^model\.dropout_semantics=native: checkpoints do not have the state of Ker"):
        check_noise({"tf": description}, aligned=False)
