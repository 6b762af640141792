"""Metrics that are computed from the predictions of all validation examples."""
