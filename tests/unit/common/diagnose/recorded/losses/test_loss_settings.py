"""Arguments of loss functions under common names."""

import pytest

from common.diagnose.recorded.losses.loss_settings import describe_kind, read_loss_settings
from common.recording.record_format import LossFacts

KERAS: LossFacts = {"name": "keras.losses.KLDivergence", "arguments": {"reduction": "sum_over_batch_size"}}


@pytest.mark.parametrize(("reduction", "is_equal"), [("batchmean", True), ("mean", False), ("sum", False)])
def test_a_kl_divergence_of_pytorch_averages_over_the_examples_with_batchmean(reduction: str, is_equal: bool) -> None:
    settings = read_loss_settings({"name": "kl_div", "arguments": {"reduction": reduction}})
    assert (settings == read_loss_settings(KERAS)) == is_equal


@pytest.mark.parametrize(("reduction", "is_equal"), [("mean", False), ("none", False)])
def test_a_ctc_loss_of_pytorch_divides_by_the_numbers_of_labels(reduction: str, is_equal: bool) -> None:
    torch, keras = (
        read_loss_settings({"name": name, "arguments": {"reduction": value}})
        for name, value in (("ctc_loss", reduction), ("keras.losses.CTC", "sum_over_batch_size"))
    )
    assert torch["kind"] == keras["kind"]
    assert (torch["reduction"] == keras["reduction"]) == is_equal


def test_the_words_for_a_function_of_a_damaged_record_are_short_and_on_one_line() -> None:
    assert describe_kind({"name": "keras.losses.Own\n" + 1000 * "x", "arguments": {}}) == "Own " + 56 * "x"
