"""Tests of the copies of tensors in a record."""

import numpy as np
import tensorflow as tf

from common.recording.record_writer import SAMPLE_SIZE, Sample
from tf_impl.record.notes import list_step_notes
from tf_impl.record.step import Step
from tf_impl.record.tensors import Copies, list_step_results, name_tensors, replace_tensors


def test_texts_are_named_as_not_recorded() -> None:
    copies = Copies(1 << 20)
    assert list(copies.copy({"0": tf.constant(["a text"]), "1": tf.constant([1.0])})) == ["1"]
    assert copies.omitted == {"0": "string"}
    sentences = list_step_notes(Step(1, 0.1, None, {}), True, copies.omitted)
    assert any(sentence.startswith("The tensor 0 has the type string and is not recorded") for sentence in sentences)


def test_a_sample_stands_only_for_what_is_larger_than_a_sample() -> None:
    copies = Copies(0)
    arrays = copies.copy({"labels": tf.ones([16]), "images": tf.ones([SAMPLE_SIZE + 1])})
    assert isinstance(arrays["labels"], np.ndarray)
    assert isinstance(arrays["images"], Sample)


def test_a_sparse_matrix_is_a_dense_one_and_keeps_its_form() -> None:
    edges = tf.sparse.from_dense(tf.constant([[0.0, 2.0], [3.0, 0.0]]))
    ids = tf.sparse.from_dense(tf.constant([[0, 2], [3, 0]]))
    named = name_tensors((edges, ids))
    assert sorted(named) == ["0", "1.0", "1.1", "1.2"]
    np.testing.assert_array_equal(named["0"], [[0, 2], [3, 0]])
    replaced, kept = replace_tensors((edges, ids), {"0": tf.constant([[1.0, 0.0], [0.0, 0.0]])})
    assert isinstance(replaced, tf.SparseTensor)
    np.testing.assert_array_equal(tf.sparse.to_dense(replaced), [[1, 0], [0, 0]])
    assert kept is ids


def test_the_losses_of_outputs_are_no_results_beside_the_loss() -> None:
    loss, part, count = tf.constant(1.0), tf.constant(0.5), tf.constant(3)
    results = [
        list_step_results(returned) for returned in ({"a_loss": part, "loss": loss}, {"a": part, "b": loss, "n": count})
    ]
    assert [[float(tensor) for tensor in tensors] for tensors in results] == [[1.0], [0.5, 1.0]]
    assert list_step_results((loss, {"loss": part})) == [loss, part]
