"""The strategies of the PyTorch side, a file or a package for each."""
