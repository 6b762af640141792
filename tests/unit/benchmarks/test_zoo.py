"""The zoo of public pairs: its list is well-formed, its table complete, and one pair is proven and trained."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.zoo import repositories
from benchmarks.zoo.__main__ import try_pair
from benchmarks.zoo.catalog import PAIRS
from benchmarks.zoo.proving import Prover
from benchmarks.zoo.result import ZooResult, read_result, write_result
from benchmarks.zoo.table import tabulate
from common.map.input_specs import parse_input_spec

TOLERANCE = 1e-12


def test_the_list_is_well_formed() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    for pair in PAIRS:
        for name, text in pair.inputs.items():
            parse_input_spec(name, text)
        for factory in (pair.torch, pair.keras):
            module, _, function = factory.partition(":")
            spec = find_spec(module)
            assert spec is not None
            assert spec.origin is not None
            functions = [
                node.name for node in ast.parse(Path(spec.origin).read_text()).body if isinstance(node, ast.FunctionDef)
            ]
            assert function in functions, factory


def test_the_table_has_every_result(tmp_path: Path) -> None:
    results = [
        ZooResult(True, True, proof_difference=3e-16, losses=2e-16, gradient_norms=1e-16, seconds=60),
        ZooResult(True, differences=["PyTorch computes A | B"]),
        ZooResult(skipped="No module named 'x'"),
    ]
    path = tmp_path / "zoo" / "pair.json"
    for result in results:
        write_result(path, result)
        assert read_result(path) == result
    table = tabulate(list(zip(PAIRS, results, strict=False)))
    assert table.startswith("3 pairs, 2 tried here: 2 paired without a map file, 1 proven, 1 trained.")
    assert "| yes | 3e-16 | 2e-16, 1e-16 | 60 |  |" in table
    assert "| yes | no |  | 0 | PyTorch computes A / B |" in table
    assert "skipped: No module named 'x' |" in table


def test_a_file_of_a_repository_is_imported_from_its_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(repositories, "CLONES", tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"No module named model.py .*; clone https://github.com/owner/name"):
        repositories.import_file("owner/name", "model.py")
    (tmp_path / "owner/name").mkdir(parents=True)
    (tmp_path / "owner/name/model.py").write_text("WIDTH = 3")
    assert repositories.import_file("owner/name", "model.py").WIDTH == 3


@pytest.mark.bench
def test_a_pair_is_proven_and_trained() -> None:
    (pair,) = [pair for pair in PAIRS if pair.name == "t5"]
    with Prover() as prover:
        result = try_pair(prover, pair)
    assert result.proven, result
    assert result.losses is not None, result
    assert result.losses < TOLERANCE
