"""The stages of the diagnosis, each of which compares one part of training."""
