"""Pairing of the variables of a PyTorch module and a Keras model, and the proof that both compute the same."""
