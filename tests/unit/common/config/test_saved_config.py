from pathlib import Path

import pytest

from common.config.saved_config import read_flat_values, read_values
from common.errors import UserError

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "has YAML aliases, which no saved config has"),
        ("a: &a [*a]", "has YAML aliases"),
        ("train: {seed: '${oc.env:HOME}'}", "has an interpolation"),
        ("a: !!python/object/apply:os.system [true]", "has the YAML tag tag:yaml.org,2002:python/object/apply:os"),
        ("a: !!timestamp x", "has the YAML tag"),
        ("a: " + "[" * 100_000, "has more than 50 levels"),
        ("a: 1" + ":59" * 100_000, "has a value of 300001 characters"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        ("a: 2001-99-99", "month must be in 1..12"),
        ("a: \0", "unacceptable character"),
        ("- 1", "not a mapping of keys to values"),
        ("", "not a mapping of keys to values"),
        ("a: {b", "while parsing a flow mapping"),
    ],
)
def test_a_config_that_no_run_has_saved_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    for read in (read_values, read_flat_values):
        with pytest.raises(UserError) as raised:
            read(file)
        assert str(raised.value).startswith(f"{file}: not a saved config: {expected}")
        assert "\n" not in str(raised.value)


def test_a_file_that_is_no_text_or_does_not_exist_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(UserError, match=r"config\.yaml: cannot be read: No such file"):
        read_values(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"config\.yaml: not a saved config: 'utf-8' codec"):
        read_values(file)
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # a sparse file: it could not be read into memory
    with pytest.raises(UserError, match="has more than 4 MiB"):
        read_values(file)
