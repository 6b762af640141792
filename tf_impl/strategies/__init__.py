"""The strategies of the TensorFlow side, a file or a package for each."""
