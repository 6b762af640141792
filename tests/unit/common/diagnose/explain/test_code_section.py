"""Code between layers with its arrays."""

import numpy as np
import pytest

from common.diagnose.explain import code_section
from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput

STREAM = np.random.default_rng(0)


def test_large_arrays_are_explained_by_the_examples_that_differ_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the arrays of layers and of the batch too, but no array of another length."""
    x = STREAM.standard_normal((8, 5, 6))
    mask = STREAM.integers(2, size=(8, 5))
    a, b = np.tanh(x), np.tanh(x)
    b[[2, 5]] = np.maximum(x[[2, 5]], 0)
    monkeypatch.setattr(code_section, "MOST_ELEMENTS", 60)
    other = LayerOutput("other", x[:4], x)
    section = CodeSection("input of head", "head", a, b, [other, LayerOutput("layer", x)], {"mask": mask})
    limited = section.limit_examples()
    np.testing.assert_array_equal(limited.batch["mask"], mask[[2, 5]])
    assert limited.earlier_outputs[0].returned is other.returned
    np.testing.assert_array_equal(limited.earlier_outputs[0].received_in_a, x[[2, 5]])
    (explanation,) = explain_code(section)
    assert explanation.sentence == "between layer and head: A has tanh, B relu"
    assert limited.place.endswith("head, in the 2 examples that differ most")
