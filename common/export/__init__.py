"""The command that exports the weights of a run."""
