"""Diagnosis of two records of training scripts. Nothing is computed again."""
