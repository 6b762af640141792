"""Records of training scripts that Lockstep did not write: what they computed in their first steps."""
