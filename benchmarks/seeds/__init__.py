"""Measurement of the verdicts on groups of seeds: false alarms on equal groups, and planted faults that are found."""
