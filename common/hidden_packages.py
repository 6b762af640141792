"""Packages that a library does not see while it is imported, as if they were not installed.

Other code can import these packages at any time. So can the library, after its own import has ended.
"""

from __future__ import annotations  # common.run_module must get as far as the check of its version

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

# Keras imports these packages only for its plots and for its estimators of scikit-learn, which no process of Lockstep
# uses. These packages take a quarter of the CPU time of the import of Keras.
UNUSED_BY_KERAS = ("matplotlib", "sklearn")


def hide_packages_of_keras() -> None:
    """Make Keras start without the packages that no process of Lockstep needs."""
    hide_packages("keras", UNUSED_BY_KERAS)


def hide_packages(library: str, packages: Sequence[str]) -> None:
    """Make the imports of packages fail that a library tries while it is imported.

    Args:
        library: The name of the library, which may be imported later or never.
        packages: The names of the packages. A package that is imported already stays visible.
    """
    if not any(isinstance(finder, _Finder) and finder.library == library for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(library, packages))


class _Finder(importlib.abc.MetaPathFinder):
    """A finder of one library."""

    def __init__(self, library: str, packages: Sequence[str]) -> None:
        self.library, self._packages = library, packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.library:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._packages)
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that hides packages while it runs the code of the library."""

    def __init__(self, loader: importlib.abc.Loader, packages: Sequence[str]) -> None:
        self._loader, self._packages = loader, packages

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # which finds the files of the library
        hidden = [name for name in self._packages if name not in sys.modules]
        for name in hidden:
            sys.modules[name] = None  # type: ignore[assignment]  # Python's documented way to block an import
        try:
            self._loader.exec_module(module)
        except ModuleNotFoundError as error:
            if error.name not in hidden:
                raise
            reason = f"{module.__name__} cannot be imported without {error.name}; upgrade {module.__name__}"
            raise ImportError(reason, name=module.__name__) from error
        finally:
            for name in hidden:
                del sys.modules[name]
