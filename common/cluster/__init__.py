"""The cluster of a run: who takes part, and how its processes start, stop and restart."""
