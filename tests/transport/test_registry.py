"""A transport is found by its scheme, and a missing package is named."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from splitarrow.errors import MissingExtraError, UriError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import registry
from splitarrow.transport.base import Capabilities, Traits
from splitarrow.transport.registry import (
    find_transport,
    list_schemes,
    override_transport,
)


@pytest.mark.parametrize("scheme", ["inproc", "tcp", "tcp+tls", "shm", "ucx"])
def test_each_built_in_scheme_is_found(scheme: str) -> None:
    assert find_transport(DataUri(scheme)).scheme == scheme
    assert scheme in list_schemes()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, package: str | None) -> Any:
        raise ModuleNotFoundError("no cffi", name="cffi")

    monkeypatch.setattr(registry, "import_module", fail)
    registry._import_built_in.cache_clear()
    with pytest.raises(MissingExtraError, match=r"needs .*'cffi'.*pip install 'splitarrow\[ucx\]'"):
        find_transport(DataUri("ucx"))
    with pytest.raises(ModuleNotFoundError):
        find_transport(DataUri("tcp"))


def test_a_transport_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ImportError("no such module")

    point: Any = SimpleNamespace(value="package.quic:TRANSPORT", load=fail)
    monkeypatch.setattr(registry, "_find_entry_points", lambda: {"quic": point})
    registry._load_entry_point.cache_clear()
    with pytest.raises(UriError, match=r"quic:// from package\.quic:TRANSPORT: no such module"):
        find_transport(DataUri("quic"))
    registry._load_entry_point.cache_clear()
    with pytest.raises(UriError, match="unknown"):
        find_transport(DataUri("quick"))
    registry._load_entry_point.cache_clear()


def test_a_scheme_of_another_package_promises_nothing_by_default() -> None:
    traits = Traits()
    assert (traits.default_port, traits.location_rank, traits.descriptors) == (None, None, 3)
    assert not any(
        (traits.local_only, traits.encrypted, traits.shares_socket, traits.leases_memory)
    )
    capabilities = Capabilities()
    assert not any((capabilities.offset_bodies, capabilities.remote_reads))


def test_the_schemes_of_other_packages_follow_the_built_in_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built_in = ["inproc", "tcp", "tcp+tls", "shm", "ucx"]
    assert list_schemes() == built_in
    loads: list[str] = []
    transport: Any = SimpleNamespace(scheme="quic")

    def load() -> Any:
        loads.append("quic")
        return transport

    point: Any = SimpleNamespace(value="quic:TRANSPORT", load=load)
    points = {"tcp": point, "quic": point, "fast": point}
    monkeypatch.setattr(registry, "_find_entry_points", lambda: points)
    registry._load_entry_point.cache_clear()
    assert list_schemes() == [*built_in, "fast", "quic"]
    assert find_transport(DataUri("tcp")).scheme == "tcp"
    assert loads == []
    for _ in range(2):
        assert find_transport(DataUri("quic")) is transport
    assert loads == ["quic"]
    with pytest.raises(UriError, match="unknown scheme 'x' in x://; known are inproc, tcp, "):
        find_transport(DataUri("x"))
    registry._load_entry_point.cache_clear()


def test_the_innermost_override_is_used() -> None:
    original = find_transport(DataUri("tcp"))
    first: Any = SimpleNamespace(scheme="tcp")
    second: Any = SimpleNamespace(scheme="tcp")
    other: Any = SimpleNamespace(scheme="new")
    with override_transport(first), override_transport(other):
        assert find_transport(DataUri("tcp")) is first
        assert find_transport(DataUri("new")) is other
        with suppress(KeyError), override_transport(second):
            assert find_transport(DataUri("tcp")) is second
            raise KeyError
        assert find_transport(DataUri("tcp")) is first
    assert find_transport(DataUri("tcp")) is original
    with pytest.raises(UriError, match="unknown scheme 'new'"):
        find_transport(DataUri("new"))
