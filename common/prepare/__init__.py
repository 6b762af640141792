"""The command that builds a cache and an initial checkpoint ahead of time."""
