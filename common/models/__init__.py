"""What both sides need to build the same model: names, shapes and initial values of its parameters, and checkpoints."""
