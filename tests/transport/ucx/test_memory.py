"""Registered memory: what a peer may read, and how long; and the memory of devices."""

from __future__ import annotations

import os
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_header import Header, read_numbers
from splitarrow.errors import ProtocolError, TransportError
from splitarrow.transport.ucx import memory
from splitarrow.transport.ucx.ffi import OK, ffi
from splitarrow.transport.ucx.memory import AnnouncedRegion, Registration, register

FAILED = Header.UCS_ERR_NO_MEMORY


class Library:
    """Takes the place of the library, and counts what is registered and freed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statuses: dict[str, int] = {}
        self.maps: list[Any] = []
        self.threads: list[threading.Thread] = []
        self.memory_types = 1
        self.calls: list[Any] = []
        self.key = ffi.new("char[]", b"packed key")
        monkeypatch.setattr(memory, "ucp", self)

    def ucp_context_query(self, context: Any, attributes: Any) -> int:
        attributes.memory_types = self.memory_types
        return OK

    def ucp_mem_map(self, context: Any, params: Any, created: Any) -> int:
        self.threads.append(threading.current_thread())
        address = int(ffi.cast("uintptr_t", params.address))
        self.maps.append((context, address, read_numbers(params)))
        created[0] = ffi.cast("ucp_mem_h", 4096)
        return self.statuses.get("map", OK)

    def ucp_mem_unmap(self, context: Any, handle: Any) -> int:
        self.calls.append(("unmap", context, int(ffi.cast("uintptr_t", handle))))
        return OK

    def ucp_rkey_pack(self, context: Any, handle: Any, buffer: Any, size: Any) -> int:
        buffer[0], size[0] = self.key, 10
        return self.statuses.get("pack", OK)

    def ucp_rkey_buffer_release(self, buffer: Any) -> None:
        assert buffer == self.key
        self.calls.append("release")

    def ucp_ep_rkey_unpack(self, endpoint: Any, key: bytes, created: Any) -> int:
        self.calls.append((endpoint, key))
        created[0] = ffi.cast("ucp_rkey_h", 64)
        return self.statuses.get("unpack", OK)

    def ucp_rkey_destroy(self, key: Any) -> None:
        self.calls.append(("destroy", int(ffi.cast("uintptr_t", key))))


def test_a_region_is_registered_for_reading_once_per_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library(monkeypatch)
    region: Any = SimpleNamespace(address=1 << 20, size=3000, registrations={})
    first = register(region, "context")
    assert register(region, "context") is first
    assert first.announcement() == struct.pack("<QQ", 1 << 20, 3000) + b"packed key"
    numbers = {
        "field_mask": Header.UCP_MEM_MAP_PARAM_FIELD_ADDRESS
        | Header.UCP_MEM_MAP_PARAM_FIELD_LENGTH
        | Header.UCP_MEM_MAP_PARAM_FIELD_PROT
        | Header.UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,  # that of the host is 0
        "length": 3000,
        "prot": Header.UCP_MEM_MAP_PROT_LOCAL_READ | Header.UCP_MEM_MAP_PROT_REMOTE_READ,
    }
    assert library.maps == [("context", 1 << 20, numbers)]
    assert register(region, "other") is not first
    assert len(library.maps) == 2
    assert library.calls == ["release"] * 2
    library.calls.clear()
    del first
    region.registrations.clear()
    assert sorted(library.calls) == [("unmap", "context", 4096), ("unmap", "other", 4096)]


@pytest.mark.parametrize(("memory_types", "is_own"), [(1, True), (3, False)])
def test_a_library_with_devices_registers_on_a_thread_without_one(
    monkeypatch: pytest.MonkeyPatch, memory_types: int, is_own: bool
) -> None:
    library = Library(monkeypatch)
    library.memory_types = memory_types
    assert Registration("context", 1 << 20, 1).key == b"packed key"
    assert [each is threading.current_thread() for each in library.threads] == [is_own]


def test_a_forked_child_leaves_registered_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    registration = Registration("context", 1 << 20, 1)
    library.calls.clear()
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    del registration
    assert library.calls == []


@pytest.mark.parametrize(("step", "freed"), [("map", 0), ("pack", 1)])
def test_memory_that_cannot_be_registered_is_an_error(
    monkeypatch: pytest.MonkeyPatch, step: str, freed: int
) -> None:
    library = Library(monkeypatch)
    library.statuses[step] = FAILED
    with pytest.raises(TransportError, match="cannot register memory: out of memory"):
        Registration("context", 1 << 20, 1)
    assert library.calls == [("unmap", "context", 4096)] * freed


def test_the_end_of_the_process_does_not_call_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finalizers: list[Any] = []

    def finalize(*arguments: Any) -> Any:
        finalizers.append(SimpleNamespace(atexit=True))
        return finalizers[-1]

    Library(monkeypatch)
    monkeypatch.setattr(memory, "weakref", SimpleNamespace(finalize=finalize))
    Registration("context", 1 << 20, 1)
    assert [finalizer.atexit for finalizer in finalizers] == [False]


@pytest.mark.parametrize(
    ("address", "size", "key"), [(0, 1, 1), (5, 0, 4096), ((1 << 64) - 2, 1, 9)]
)
def test_a_key_is_destroyed_once(
    monkeypatch: pytest.MonkeyPatch, address: int, size: int, key: int
) -> None:
    library = Library(monkeypatch)
    region = AnnouncedRegion("endpoint", struct.pack("<QQ", address, size) + b"k" * key)
    assert (region.address, region.size) == (address, size)
    region.destroy()
    region.destroy()
    assert region.key is None
    assert library.calls == [("endpoint", b"k" * key), ("destroy", 64)]


def test_a_malformed_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    library.statuses["unpack"] = FAILED
    with pytest.raises(ProtocolError, match="key of a region is malformed: out of memory"):
        AnnouncedRegion("endpoint", bytes(17))


def test_the_memory_of_devices_has_the_types_of_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `DLDeviceType`: 1 is the processor, 2 is CUDA, and 13 is CUDA's managed memory."""
    assert memory.MEMORY_TYPES == {
        1: Header.UCS_MEMORY_TYPE_HOST,
        2: Header.UCS_MEMORY_TYPE_CUDA,
        13: Header.UCS_MEMORY_TYPE_CUDA_MANAGED,
    }
    status, types = OK, 0b0001

    def query(context: Any, attributes: Any) -> int:
        assert context == "context"
        assert attributes.field_mask == Header.UCP_ATTR_FIELD_MEMORY_TYPES
        attributes.memory_types = types
        return status

    monkeypatch.setattr(memory, "ucp", SimpleNamespace(ucp_context_query=query))
    assert memory.list_device_types("context") == {1}
    types = 0b0011
    assert memory.list_device_types("context") == {1, 2}
    types = 0b0111
    assert memory.list_device_types("context") == {1, 2, 13}
    types = 0b1000
    assert memory.list_device_types("context") == frozenset()
    status, types = FAILED, 0b111
    assert memory.list_device_types("context") == frozenset()


@pytest.mark.parametrize(
    ("address", "size", "key", "why"),
    [
        (0, 1, 0, "in 16 bytes"),
        (0, 1, 4097, "in 4113 bytes"),
        ((1 << 64) - 1, 1, 1, "beyond the end of memory"),
        (1, (1 << 64) - 1, 4096, "beyond the end of memory"),
    ],
)
def test_an_impossible_region_is_refused(address: int, size: int, key: int, why: str) -> None:
    payload = struct.pack("<QQ", address, size) + bytes(key)
    with pytest.raises(ProtocolError, match=why):
        AnnouncedRegion(None, payload)
