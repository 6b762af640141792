"""The command `python -m common.prepare`, which builds a data cache and the initial weights ahead of a run."""
