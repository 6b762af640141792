"""The parts of a model that both sides share: names, shapes and initial values of its parameters, and checkpoints."""
