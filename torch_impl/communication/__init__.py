"""Communication between the processes of a PyTorch run."""
