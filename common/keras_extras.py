"""Keeps Keras from importing packages that only its plots and its wrappers of scikit-learn need.

Keras imports Matplotlib and scikit-learn with its own first import if they are installed. No process of Lockstep calls
what needs them, and without them `import tensorflow` takes a quarter less time. The user's model may import them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder

EXTRAS = ("matplotlib", "sklearn")


class _ExtrasOfKeras(MetaPathFinder):
    """A finder that answers Keras as if the packages were not installed; then Keras goes on without them."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        """Raise ModuleNotFoundError if Keras imports one of the packages. Otherwise leave it to the other finders."""
        if fullname in EXTRAS and _find_importer().startswith("keras."):
            raise ModuleNotFoundError(f"No module named {fullname!r} in a process of Lockstep", name=fullname)


def _find_importer() -> str:
    """Return the name of the module whose code is importing."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def leave_out_extras() -> None:
    """Leave the packages out when Keras is imported in this process."""
    if not any(isinstance(finder, _ExtrasOfKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ExtrasOfKeras())
