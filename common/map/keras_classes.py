"""The classes of Keras 3 and of Keras 2, which is the package tf_keras.

No process of `common` imports Keras, so this reads the classes by name.
"""

from collections.abc import Collection
from typing import Any

KERAS_2 = "tf_keras"
KERAS_PACKAGES = ("keras", KERAS_2)


def is_keras_module(name: str, packages: Collection[str] = KERAS_PACKAGES) -> bool:
    """Check whether a module of this name is one of Keras's own."""
    return name.partition(".")[0] in packages


def is_keras_class(kind: type, packages: Collection[str] = KERAS_PACKAGES) -> bool:
    """Check whether a class is one of Keras's own."""
    return is_keras_module(kind.__module__, packages)


def find_keras_class(layer: object, name: str, packages: Collection[str] = KERAS_PACKAGES) -> Any:  # noqa: ANN401
    """Return Keras's class of a name that a layer is or derives from; None if there is none."""
    kinds = (kind for kind in type(layer).__mro__ if kind.__name__ == name and is_keras_class(kind, packages))
    return next(kinds, None)


def get_user_model(model: Any) -> Any:  # noqa: ANN401  a keras.Layer, or a layer of Keras 2
    """Return the model that the user's factory returned: one of Keras 2 is wrapped in a layer of Keras 3."""
    return getattr(model, "keras_two", model)
