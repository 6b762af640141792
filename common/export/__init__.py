"""The command `python -m common.export`, which saves the weights of a run for other programs."""
