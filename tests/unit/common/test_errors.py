import pytest

from common.errors import build_write_error


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
