"""Meet the other processes of a run."""


def join_group(timeout: float) -> None:
    """Watch the start of this process's cluster."""
