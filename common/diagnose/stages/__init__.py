"""The stages of a diagnosis, each of which compares one part of the training of two runs."""
