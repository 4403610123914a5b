"""Tests of splitarrow.pytorch. Those that need PyTorch run with `make test-torch`."""

from __future__ import annotations

from importlib.util import find_spec

NEED_TORCH = [
    "test_dataset.py",
    "test_loaders.py",
    "test_page.py",
    "test_tensors.py",
]
collect_ignore = [] if find_spec("torch") else NEED_TORCH
