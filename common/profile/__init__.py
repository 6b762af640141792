"""Profiles of a few training steps, as `train.profile=true` writes them: phases of a step and lanes of the last one."""
