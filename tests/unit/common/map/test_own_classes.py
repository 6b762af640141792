"""Classes of a user's own whose layout their shapes do not tell: paired and proven, most without a map file."""

from pathlib import Path

import pytest

from common.map.unmatched import describe_unmatched
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


@pytest.mark.slow
def test_one_kernel_for_the_token_and_the_state_is_two_matrices_in_a_map_file(
    pair_models: PairModels, tmp_path: Path
) -> None:
    arguments = ("own_torch:joined_cell", "own_keras:joined_cell", {"x": "float32[3,5,8]"})
    models = pair_models(*arguments)
    kernel = describe_unmatched(models.parameter_map, models.torch_description, models.keras_description)[-1]
    line = "sequential/cell/kernel: lstm.weight_ih_l0 & lstm.weight_hh_l0 axis 1 | transpose 1 0"
    assert line in kernel
    path = tmp_path / "map.yaml"
    biases = "sequential/cell/bias: lstm.bias_ih_l0 + lstm.bias_hh_l0 | blocks 0 2 1 3"
    path.write_text("\n".join([line.replace("|", "| blocks 0 2 1 3 |"), biases]))
    assert pair_models(*arguments, path).proven
