"""Classes of a user's own whose layout their shapes do not tell: paired and proven without a map file."""

import pytest

from tests.unit.common.map.conftest import PairModels

PAIRS = [
    ("own_cells", {"gates": "rzn"}),
    ("own_cells", {"gates": "ifog"}),
    ("own_keras_cell", {}),
    ("transformed_points", {}),
    ("own_squares", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), PAIRS)
def test_a_class_of_ones_own_is_proven(pair_models: PairModels, name: str, arguments: dict[str, str]) -> None:
    models = pair_models(f"own_torch:{name}", f"own_keras:{name}", {"x": "float32[3,5,8]"}, **arguments)
    assert models.proven, models.proof
