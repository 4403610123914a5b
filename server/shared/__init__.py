"""Datasets as readers on the same host map them: every body lies in one region."""
