"""Tests of the benchmarks. That of PyTorch's loaders runs with `make test-torch`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch") else ["test_loader.py"]
