"""CUDA on a host without it: one clear error."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import splitarrow
from splitarrow.errors import MissingExtraError, UsageError
from splitarrow.memory import CudaMemory, PinnedMemory, cuda


@pytest.fixture(autouse=True)
def load_again() -> Iterator[None]:
    cuda.load_runtime.cache_clear()
    yield
    cuda.load_runtime.cache_clear()


@pytest.mark.parametrize("memory", ["pinned", "cuda", "cuda:0"])
def test_a_missing_extra_is_named(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[gpu\]'"):
        splitarrow.open("tcp://127.0.0.1:1/data", memory=memory)


def has_cuda() -> bool:
    try:
        cuda.load_runtime()
    except UsageError:
        return False
    return True


@pytest.mark.skipif(has_cuda(), reason="this host has a CUDA device")
@pytest.mark.parametrize("memory", [PinnedMemory, CudaMemory])
def test_a_host_without_cuda_is_explained(memory: type[object]) -> None:
    with pytest.raises(UsageError, match="CUDA memory cannot be used on this host: "):
        memory()
