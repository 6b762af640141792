"""Aligned dropout: the reference's masks, for padded and unpadded tokens."""

from pathlib import Path

import numpy as np

from common.data.dropout import example_keys
from tests.conftest import Python
from tests.unit import reference_dropout

KEYS = example_keys(3, 7, np.array([5, 0, 2**33]))
SHAPES = ((6,), (4, 6), (2, 5, 70))
RATES = (0.1, 0.5, 0.9)

COMPUTE = """
import sys
import numpy as np
import tensorflow as tf
from common.data.dropout import site_key
from tests.unit.tf_impl.test_dropout import KEYS, RATES, SHAPES
from tf_impl.dropout import drop, keep, kept, rows_of, rows_of_tokens

site, found = tf.constant(site_key("a.dropout"), tf.int64), {}
for compiled in (False, True):
    @tf.function(jit_compile=compiled, autograph=False)
    def compute(keys):
        masks = {}
        for index, shape in enumerate(SHAPES):
            rows = rows_of(keys, site, list(shape[:-1]))
            for rate in RATES:
                for dtype in (tf.float64, tf.float32):
                    mask = kept(rows, shape[-1], rate)
                    masks[f"{index} {rate} {dtype.name}"] = keep(tf.ones(tf.shape(mask), dtype), rate, mask)
        return masks

    found |= {f"{name} {compiled}": value.numpy() for name, value in compute(tf.constant(KEYS)).items()}
padded = rows_of(tf.constant(KEYS), site, [5]).numpy()
examples, positions = np.array([0, 0, 0, 0, 1, 2, 2, 2], np.int32), np.array([0, 1, 2, 3, 0, 0, 1, 2], np.int32)
found["tokens"] = rows_of_tokens(tf.constant(KEYS), site, (examples, positions)).numpy()
found["expected tokens"] = padded[examples, positions]
x = tf.random.normal([3, 4, 6], dtype=tf.float64)
rows = rows_of(tf.constant(KEYS), site, [4])
found["dropped"] = drop(x, 0.5, rows).numpy() / x.numpy()
np.savez(sys.argv[1], **found)
"""


def test_masks_are_the_references(tmp_path: Path, python: Python) -> None:
    """Compiled by XLA too."""
    python(COMPUTE, tmp_path / "found.npz")
    found = dict(np.load(tmp_path / "found.npz"))
    for index, shape in enumerate(SHAPES):
        for rate in RATES:
            expected = reference_dropout.mask(KEYS, "a.dropout", shape, rate)
            for dtype in ("float64", "float32"):
                for compiled in (False, True):
                    mask = found[f"{index} {rate} {dtype} {compiled}"]
                    assert mask.dtype == dtype and np.array_equal(mask, expected.astype(dtype))
    assert np.array_equal(found["tokens"], found["expected tokens"])
    assert np.array_equal(found["dropped"], reference_dropout.mask(KEYS, "a.dropout", (4, 6), 0.5))
