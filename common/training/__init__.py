"""The training loop, and its interface to strategies and observers."""
