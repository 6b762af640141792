"""Labelled text: sources, tokenizers and the token cache."""
