"""The run directory: preparation, rows, checkpoints and summary of one run."""
