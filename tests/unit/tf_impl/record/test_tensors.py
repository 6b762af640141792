"""Tests of the copies of tensors in a record."""

import tensorflow as tf

from tf_impl.record.notes import list_step_notes
from tf_impl.record.step import Step
from tf_impl.record.tensors import Copies


def test_texts_are_named_as_not_recorded() -> None:
    copies = Copies(1 << 20)
    assert list(copies.copy({"0": tf.constant(["a text"]), "1": tf.constant([1.0])})) == ["1"]
    assert copies.omitted == {"0": "string"}
    sentences = list_step_notes(Step(1, 0.1, None, {}), True, copies.omitted)
    assert any(sentence.startswith("The tensor 0 has the type string and is not recorded") for sentence in sentences)
