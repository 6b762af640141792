"""The config of a run: typed schemas with their limits, composition, checks and resolution. A `Config` is frozen."""
