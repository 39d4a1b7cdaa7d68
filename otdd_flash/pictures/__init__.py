"""Datasets and results as pictures."""
