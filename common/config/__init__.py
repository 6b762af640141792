"""What a run is: typed schemas with their limits, composition, checks, and resolution. A `Config` is frozen."""
