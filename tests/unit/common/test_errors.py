import pytest

from common.errors import UserError, build_write_error, escape_control_characters


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("3 requested and\n 2 written"), "3 requested and 2 written"),
        (ValueError("too large"), "too large"),
    ],
)
def test_what_cannot_be_written(error: Exception, reason: str) -> None:
    assert (
        str(build_write_error("a/b", error)) == f"a/b: cannot be written ({reason}); make space or choose another place"
    )


def test_an_error_sends_no_commands_to_a_terminal() -> None:
    error = UserError("run \x1b]0;title\x07\x9b2J\u202e.json: \r\x00\x7f\tä")
    assert str(error) == r"run \x1b]0;title\x07\x9b2J\u202e.json: \r\x00\x7f" + "\tä"
    assert escape_control_characters(str(error)) == str(error)
