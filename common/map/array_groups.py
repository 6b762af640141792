"""Groups of arrays that processes send at once: all arrays of a model take as much memory as the model."""

from collections.abc import Iterator, Mapping

GROUP_SIZE = 1 << 26  # bytes


def group_by_size(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield names in groups whose arrays have at most GROUP_SIZE bytes together, or of a single larger array.

    Args:
        sizes: The bytes of the arrays by name.
    """
    group: list[str] = []
    group_size = 0
    for name, size in sizes.items():
        if group and group_size + size > GROUP_SIZE:
            yield group
            group, group_size = [], 0
        group.append(name)
        group_size += size
    if group:
        yield group
