"""Profiles of a few training steps, as train.profile=true records them: time per phase, and lanes of the last step."""
