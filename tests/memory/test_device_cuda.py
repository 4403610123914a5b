"""CUDA on a host without it: one clear error."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import splitarrow
from splitarrow.errors import MissingExtraError, UsageError
from splitarrow.memory import CudaMemory, PinnedMemory, device


@pytest.fixture(autouse=True)
def load_again() -> Iterator[None]:
    device._initialize.cache_clear()
    yield
    device._initialize.cache_clear()


@pytest.mark.parametrize("memory", ["pinned", "cuda", "cuda:0"])
def test_a_missing_extra_is_named(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[gpu\]'"):
        splitarrow.open("tcp://127.0.0.1:1/data", memory=memory)


def list_calls() -> list[tuple[str, int]]:
    """Return the functions of CUDA that the module calls, with the number of arguments."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(inspect.getsource(device))):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in ("call", "_call") and isinstance(node.args[0], ast.Constant):
                found.append((str(node.args[0].value), len(node.args) - 1))
            elif re.fullmatch(r"cu[A-Z]\w+", name):
                found.append((name, len(node.args)))
    return found


def test_the_calls_have_the_parameters_of_the_library() -> None:
    driver: Any = pytest.importorskip("cuda.bindings.driver")
    calls = list_calls()
    assert len(calls) > 15
    for name, count in calls:
        signature = str(getattr(driver, name).__doc__).splitlines()[0]
        parameters = signature.partition("(")[2].rpartition(")")[0]
        assert signature.startswith(f"{name}("), signature
        assert len([each for each in parameters.split(",") if each]) == count, signature


def has_cuda() -> bool:
    try:
        device.load_driver()
    except UsageError:
        return False
    return True


@pytest.mark.skipif(has_cuda(), reason="this host has a CUDA device")
@pytest.mark.parametrize("memory", [PinnedMemory, CudaMemory])
def test_a_host_without_cuda_is_explained(memory: type[object]) -> None:
    with pytest.raises(UsageError, match="CUDA memory cannot be used on this host: "):
        memory()
