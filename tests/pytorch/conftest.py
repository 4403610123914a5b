"""Tests of splitarrow.pytorch. Those that need PyTorch run with `make test-torch`."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

NEED_TORCH = [
    "test_announcement.py",
    "test_arguments.py",
    "test_audit.py",
    "test_bad_rows.py",
    "test_dataset.py",
    "test_dataset_threads.py",
    "test_decoding.py",
    "test_decoding_audio.py",
    "test_device_memory.py",
    "test_loaders.py",
    "test_map_dataset.py",
    "test_mapped_batches.py",
    "test_metrics.py",
    "test_mixture.py",
    "test_packed.py",
    "test_provenance.py",
    "test_reads.py",
    "test_resuming.py",
    "test_tensors.py",
]
collect_ignore = [] if find_spec("torch") else NEED_TORCH


@pytest.fixture
def plans_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe datasets as where loaders do not fork, which takes less time for many of them."""
    monkeypatch.setattr("splitarrow.pytorch.plan.default_start_method", lambda: "spawn")


@pytest.fixture(autouse=True)
def end_of_loader_workers() -> Iterator[None]:
    """End the workers of an iterator that the traceback of an expected error still holds.

    PyTorch waits 5 s for each of them if the garbage collector finds the iterator.
    """
    yield
    if multiprocessing.active_children():
        for each in gc.get_objects():
            if type(each).__name__.endswith("MultiProcessingDataLoaderIter"):
                each._shutdown_workers()
