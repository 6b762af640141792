"""Pairing of a PyTorch module with a Keras model, and the proof that they compute the same."""
