import json
from pathlib import Path

import pytest

from common.errors import UserError
from common.records.summary import read_final_summary, read_summary

VALID = {"framework": "torch", "strategy": "ddp", "replicas": 2, "status": "completed"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("\udcff", "not valid JSON"),
        (json.dumps(VALID)[:-1] + ', "replicas": ' + "9" * 5000 + "}", "not valid JSON"),
        (json.dumps({**VALID, "replicas": True}), "'replicas' must be a whole number, found 'True'"),
        (json.dumps({**VALID, "replicas": 10**400}), "'replicas' must be a whole number"),
        (json.dumps({**VALID, "status": None}), "'status' must be a string"),
        (json.dumps({**VALID, "error": ["x"]}), "'error' must be a string"),
        (json.dumps({**VALID, "steps": "3"}), "'steps' must be a whole number"),
        (json.dumps({**VALID, "fingerprints": "3"}), "'fingerprints' must be an object"),
        (json.dumps({**VALID, "peak_memory_bytes": ["3"]}), "'peak_memory_bytes' must be a list of numbers"),
    ],
)
def test_a_damaged_summary_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "summary.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as raised:
        read_summary(file)
    assert str(raised.value).startswith(f"{file}: {expected}") and len(str(raised.value)) < len(str(file)) + 300


def test_a_summary_of_any_size_is_read_within_bounded_memory(tmp_path: Path) -> None:
    with (tmp_path / "summary.json").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: it could not be read into memory
    with pytest.raises(UserError, match="has more than 16 MiB"):
        read_summary(tmp_path / "summary.json")


def test_a_run_without_a_summary_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "running.json").write_text(json.dumps(VALID))
    assert read_final_summary(tmp_path) is None
