"""Models as both sides must build them alike: names, shapes, initial weights and checkpoints."""
