"""Labelled images: sources and the image cache."""
