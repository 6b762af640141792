"""Measurements that take long, and the tables and pages that they make."""
