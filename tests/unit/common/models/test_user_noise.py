"""Dropout that cannot be drawn as the framework does."""

import pytest

from common.errors import UserError
from common.map.description import DropoutDescription, ModelDescription
from common.map.noise import Noise
from common.models.user_noise import check_noise


def test_native_dropout_of_keras_2_is_refused() -> None:
    dropouts = {"dropout": DropoutDescription(Noise("drop", "element", 0.1), "dropout")}
    description = ModelDescription([], {}, [], False, dropouts=dropouts, is_keras_two=True)
    with pytest.raises(UserError, match=r"^model\.dropout_semantics=native: checkpoints do not have the state of Ker"):
        check_noise({"tf": description}, aligned=False)


@pytest.mark.parametrize("aligned", [True, False])
def test_other_random_numbers_of_keras_2_are_refused_without_advising_what_is_refused_too(aligned: bool) -> None:
    description = ModelDescription([], {}, [], False, unaligned_noise=["gru (GRU)"], is_keras_two=True)
    with pytest.raises(
        UserError, match=r"^model\.tf: gru \(GRU\) draws random numbers .* a dropout or noise layer of its"
    ) as e:
        check_noise({"tf": description}, aligned)
    assert "native" not in str(e.value)
