"""Readers for runs that other programs recorded."""
