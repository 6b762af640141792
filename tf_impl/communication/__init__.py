"""Communication between the processes of a TensorFlow run."""
