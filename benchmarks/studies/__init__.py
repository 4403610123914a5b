"""Benchmarks of single parts, for developers.

They run in a checkout: ``python -m splitarrow.benchmarks.studies.NAME``.
"""
