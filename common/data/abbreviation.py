"""Short forms of long values, for errors."""

import reprlib

_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxstring = 40


def abbreviate(value: object) -> str:
    """Return the `repr` of a value, shortened if it is a long string or a long list."""
    return _REPR.repr(value)
