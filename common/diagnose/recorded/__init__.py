"""Diagnosis of two records of training scripts, which cannot compute anything again."""
