"""Records of the first steps of training scripts that are not Lockstep's."""
