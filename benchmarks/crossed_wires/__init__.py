"""The three pairs of CrossedWires (arXiv 2108.12768), with their differences removed one by one."""
