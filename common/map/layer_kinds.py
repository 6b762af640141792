"""The kind of a layer: the name of its class, or of the known class of a framework that it derives from."""

from collections.abc import Collection


def find_kind(layer: object, packages: Collection[str], known_kinds: Collection[str]) -> str:
    """Return the name of the known class of a framework that a layer is or derives from; otherwise the layer's class.

    A class of another library is named with it if that is a known kind, or if the framework has a known class of the
    same name.

    Args:
        layer: A layer of PyTorch or Keras.
        packages: The packages of the framework, such as "torch".
        known_kinds: The names of the known classes, such as Linear or transformers.Conv1D.
    """
    for kind in type(layer).__mro__:
        if kind.__module__.partition(".")[0] in packages and kind.__name__ in known_kinds:
            return kind.__name__
    name = type(layer).__name__
    qualified_name = f"{type(layer).__module__.partition('.')[0]}.{name}"
    return qualified_name if name in known_kinds or qualified_name in known_kinds else name
