"""Tests that aligned dropout has the masks of the reference, for tokens and for the probabilities of attention."""

import numpy as np
import pytest

from common.data.dropout import derive_example_keys
from tests.conftest import Python
from tests.unit import reference_dropout

pytestmark = pytest.mark.slow

KEYS = derive_example_keys(3, 7, np.array([5, 0, 2**33]))
SHAPES = ((6,), (4, 6), (2, 5, 70))
RATES = (0.1, 0.5, 0.9)

COMPUTE = """
import sys
import numpy as np
import tensorflow as tf
from common.data.dropout import derive_site_key
from tests.unit.tf_impl.test_dropout import KEYS, RATES, SHAPES
from tf_impl.dropout import apply_dropout, apply_mask, compute_mask, hash_rows, hash_token_rows

site, arrays = tf.constant(derive_site_key("a.dropout"), tf.int64), {}
for compiled in (False, True):
    @tf.function(jit_compile=compiled, autograph=False)
    def compute(keys):
        masks = {}
        for index, shape in enumerate(SHAPES):
            rows = hash_rows(keys, site, list(shape[:-1]))
            for rate in RATES:
                for dtype in (tf.float64, tf.float32):
                    mask = compute_mask(rows, shape[-1], rate)
                    ones = tf.ones(tf.shape(mask), dtype)
                    masks[f"{index} {rate} {dtype.name}"] = apply_mask(ones, 1 / (1 - rate), mask)
        return masks

    arrays |= {f"{name} {compiled}": value.numpy() for name, value in compute(tf.constant(KEYS)).items()}
padded = hash_rows(tf.constant(KEYS), site, [5]).numpy()
examples, positions = np.array([0, 0, 0, 0, 1, 2, 2, 2], np.int32), np.array([0, 1, 2, 3, 0, 0, 1, 2], np.int32)
arrays["tokens"] = hash_token_rows(tf.constant(KEYS), site, (examples, positions)).numpy()
arrays["expected tokens"] = padded[examples, positions]
x = tf.random.normal([3, 4, 6], dtype=tf.float64)
rows = hash_rows(tf.constant(KEYS), site, [4])
arrays["dropped"] = apply_dropout(x, 0.5, rows).numpy() / x.numpy()
np.savez(sys.argv[1], **arrays)
"""

ATTEND = """
import sys
import keras
import numpy as np
import tensorflow as tf
from tests.unit.tf_impl.test_dropout import KEYS
from tf_impl.aligned_layers import align_dropout, use_dropout_keys
from tf_impl.described_dropout import disable_dropout, find_dropouts
from tf_impl.float64 import compute_in_float64
from common.map.keras_paths import layers_by_path

compute_in_float64()
query, memory = tf.random.normal([3, 5, 8], dtype=tf.float64), tf.random.normal([3, 7, 6], dtype=tf.float64)
padding = tf.reshape(tf.range(21), [3, 1, 7]) % 4 != 1
layers = {
    "self": (keras.layers.MultiHeadAttention(2, 4, dropout=0.3), query, {}),
    "causal": (keras.layers.MultiHeadAttention(2, 4, dropout=0.3), query, {"use_causal_mask": True}),
    "cross": (keras.layers.MultiHeadAttention(2, 4, 3, dropout=0.3), memory, {"attention_mask": padding}),
    "grouped": (keras.layers.GroupQueryAttention(4, 4, 2, dropout=0.3), memory, {"attention_mask": padding}),
}
arrays = {}
for name, (layer, value, masks) in layers.items():
    _, probabilities = layer(query, value, **masks, return_attention_scores=True)
    before = layer(query, value, **masks)
    noises, others = find_dropouts(layer)
    ((path, noise),) = noises.items()
    assert not others
    disable_dropout(layer, noises)
    arrays[f"{name} disabled"] = layer(query, value, **masks, training=True)
    align_dropout(layers_by_path(layer)[path], "a", noise, None)

    @tf.function
    def train(keys):
        with use_dropout_keys(keys):
            return layer(query, value, **masks, training=True)

    projected = np.repeat(layer._value_dense(value), 2 if name == "grouped" else 1, 2)
    arrays |= {f"{name} probabilities": probabilities, f"{name} values": projected, f"{name} output": train(KEYS)}
    kernel, bias = layer._output_dense.get_weights()
    arrays |= {f"{name} kernel": kernel, f"{name} bias": bias, f"{name} before": before}
    arrays[f"{name} after"] = layer(query, value, **masks, training=False)
np.savez(sys.argv[2], **arrays)
"""

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, keras_python: Python) -> tuple[Arrays, Arrays]:
    """The arrays of both programs."""
    paths = [tmp_path_factory.mktemp("dropout") / f"{name}.npz" for name in ("compute", "attend")]
    keras_python(COMPUTE + ATTEND, *paths)
    masks, attention = (dict(np.load(path)) for path in paths)
    return masks, attention


def test_masks_are_those_of_the_reference(computed: tuple[Arrays, Arrays]) -> None:
    """The same holds with XLA."""
    arrays, _ = computed
    for index, shape in enumerate(SHAPES):
        for rate in RATES:
            expected = reference_dropout.mask(KEYS, "a.dropout", shape, rate)
            for dtype in ("float64", "float32"):
                for compiled in (False, True):
                    mask = arrays[f"{index} {rate} {dtype} {compiled}"]
                    assert mask.dtype == dtype and np.array_equal(mask, expected.astype(dtype))
    assert np.array_equal(arrays["tokens"], arrays["expected tokens"])
    assert np.array_equal(arrays["dropped"], reference_dropout.mask(KEYS, "a.dropout", (4, 6), 0.5))


def test_probabilities_are_multiplied_by_the_references_mask(computed: tuple[Arrays, Arrays]) -> None:
    _, arrays = computed
    for name, heads in {"self": 2, "causal": 2, "cross": 2, "grouped": 4}.items():
        probabilities, value, output, kernel, bias, *others = (
            arrays[f"{name} {part}"]
            for part in ("probabilities", "values", "output", "kernel", "bias", "before", "after", "disabled")
        )
        mask = reference_dropout.mask(KEYS, "a", (heads, 5, 5 if name in ("self", "causal") else 7), 0.3)
        assert mask.shape == probabilities.shape
        mixed = np.einsum("nhqk,nkhv->nqhv", probabilities * mask, value)
        np.testing.assert_allclose(output, np.einsum("nqhv,hvf->nqf", mixed, kernel) + bias, rtol=0, atol=1e-14)
        before, after, disabled = others
        assert np.array_equal(after, before)
        np.testing.assert_allclose(disabled, before, rtol=0, atol=1e-14)
        assert np.abs(output - before).max() > 0.01
