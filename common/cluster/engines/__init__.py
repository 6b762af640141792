"""Engines: each discovers the hosts and processes of a run for one kind of cluster."""
