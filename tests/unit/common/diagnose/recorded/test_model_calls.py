"""Arrays of several calls of a model, joined as the examples of a micro-batch."""

import numpy as np

from common.diagnose.recorded.model_calls import describe_call, find_call_rows, join_calls, join_labels

ONES, ZEROS = np.ones(3), np.zeros(3)


def test_labels_of_losses_of_each_call_are_joined_and_those_of_pairs_repeated() -> None:
    joined = join_labels({"target": ONES, "target.1": ZEROS}, [3, 3])
    assert joined["target"].tolist() == [1, 1, 1, 0, 0, 0]
    assert join_labels({"target": ONES}, [3, 3])["target"].tolist() == [1] * 6
    weights = np.arange(3.0)
    assert join_labels({"weight": weights, "target": ONES}, [3, 3], ("weight",))["weight"] is weights
    assert join_labels({"target": ONES}, [3, 4])["target"] is ONES


def test_inputs_that_not_every_call_has_are_left_out() -> None:
    calls = [{"0": ONES, "mask": ONES}, {"0": ZEROS}]
    assert {name: len(array) for name, array in join_calls(calls).items()} == {"0": 6}
    assert join_calls([{"0": ONES}, {"x": ZEROS}])["0"].tolist() == [1, 1, 1, 0, 0, 0]
    assert join_calls([{"0": ONES}, {"0": ONES[None]}]) == {}


def test_rows_of_each_call_are_found_in_all_micro_batches() -> None:
    assert [rows.tolist() for rows in find_call_rows([[2, 1], [1, 2]])] == [[0, 1, 3], [2, 4, 5]]
    assert find_call_rows([[2, 1], [3]]) == []
    assert describe_call(1, 3) == "the second of 3 calls of the model"
