"""Scripts that Lockstep is measured against: training as users of other libraries write it."""
