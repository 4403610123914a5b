"""The parts of the transport `ucx` that need no connection."""

from __future__ import annotations

import _thread
import logging
import os
import resource
import select
import socket
import struct
import threading
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from helpers.clock import Clock
from helpers.waiting import wait_until
from splitarrow.errors import LimitError, ProtocolError, TransportError, UriError
from splitarrow.log_limiter import LogLimiter
from splitarrow.protocol.bodies import pack_spans, parse_spans
from splitarrow.protocol.frames import UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.memory import BodyPool, ReceivedBody
from splitarrow.protocol.tags import BodyType, is_request_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.ucx import (
    addresses,
    context,
    diagnostics,
    lanes,
    library_log,
    linger,
    receiving,
    remote_reads,
    timers,
    worker,
)
from splitarrow.transport.ucx import ffi as ucx_library
from splitarrow.transport.ucx.ffi import IN_PROGRESS, OK, StatusError, ffi
from splitarrow.transport.ucx.lanes import lanes_pin_memory, lanes_read_remotely
from splitarrow.transport.ucx.memory import AnnouncedRegion
from splitarrow.transport.ucx.options import UcxOptions
from splitarrow.transport.ucx.receiving import Receiver
from splitarrow.transport.ucx.request_tags import (
    check_handle,
    create_handle,
    find_remote_request_tag,
    find_request_tags,
)
from splitarrow.transport.ucx.wakeup import Wakeup

URI = DataUri("ucx", "host", 1, want_data=0x1_0000_0001)


def is_readable(descriptor: int, seconds: float = 0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


# Options and tags.


@pytest.mark.parametrize(
    ("query", "body", "busy_poll"),
    [
        ({}, None, 0.0),
        ({"body": "packed"}, "packed", 0.0),
        ({"body": "remote", "busy_poll": "200"}, "remote", 2e-4),
        ({"busy_poll": "0"}, None, 0.0),
        ({"busy_poll": "1000000"}, None, 1.0),
    ],
)
def test_the_options_of_a_uri(query: dict[str, str], body: str | None, busy_poll: float) -> None:
    options = UcxOptions.from_uri(URI.replace(extra=tuple(query.items())))
    assert (options.body, options.busy_poll) == (body, busy_poll)


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1000001", "٣"])
def test_busy_polling_is_bounded(value: str) -> None:
    with pytest.raises(UriError, match="busy_poll="):
        UcxOptions.from_uri(URI.replace(extra=(("busy_poll", value),)))


def test_a_handle_yields_a_tag_that_no_body_has() -> None:
    assert find_remote_request_tag(URI) is None
    for want_data in (0x1_0000_0001, (1 << 64) - 1):
        handles = [create_handle(want_data) for _ in range(20)]
        assert len(set(handles)) == 20
        for handle in handles:
            uri = URI.replace(want_data=want_data, remote_handle=handle)
            tag = find_remote_request_tag(uri)
            assert tag is not None
            assert tag == want_data ^ int.from_bytes(handle, "little")
            assert tag >> 48 == 0xFFFF
            assert is_request_tag(tag)
            tags = find_request_tags(uri)
            assert tags.pop(tag) == BodyType.OFFSETS
            assert tags == find_request_tags(uri.replace(remote_handle=None))
    assert find_remote_request_tag(URI.replace(remote_handle=bytes(8), want_data=None)) is None


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_handle_has_8_bytes(size: int) -> None:
    check_handle(URI)
    check_handle(URI.replace(remote_handle=bytes(8)))
    for function in (check_handle, find_remote_request_tag):
        with pytest.raises(UriError, match=f"remote_handle has {size} bytes"):
            function(URI.replace(remote_handle=bytes(size)))


# Addresses.


@pytest.mark.parametrize(
    ("host", "text"), [("10.1.2.3", "10.1.2.3:8816"), ("2001:db8::7", "[2001:db8::7]:8816")]
)
def test_an_address_survives_its_structure(host: str, text: str) -> None:
    packed = addresses.pack(host, 8816)
    storage = ffi.new("struct sockaddr_storage *")
    ffi.buffer(storage)[: len(packed)] = packed
    assert addresses.unpack(storage[0]) == (host, 8816)
    assert addresses.format_address(host, 8816) == text
    assert addresses.resolve(host, 8816) == (host, 8816)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM):
        assert len(packed) == (28 if ":" in host else 16)


def test_the_first_address_of_a_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: str, port: int, *, type: int) -> list[Any]:
        assert (host, port, type) == ("host", 8817, socket.SOCK_STREAM)
        families = socket.AF_INET6, socket.AF_INET
        addresses = ("2001:db8::7", 8817, 0, 0), ("10.1.2.3", 8817)
        return [(f, type, 6, "", each) for f, each in zip(families, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    assert addresses.resolve("host", 8817) == ("2001:db8::7", 8817)


def test_an_address_of_another_family_is_unknown() -> None:
    assert addresses.unpack(ffi.new("struct sockaddr_storage *")[0]) == ("?", 0)


def test_the_scope_of_an_address_is_an_interface() -> None:
    index, name = socket.if_nameindex()[0]
    scoped, plain = addresses.pack(f"fe80::1%{name}", 1), addresses.pack("fe80::1", 1)
    assert int.from_bytes(scoped[-4:], "little") == index
    assert (scoped[:-4], plain[-4:]) == (plain[:-4], bytes(4))


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.9", True), ("192.0.2.1", False)],
)
def test_the_loopback_is_local(host: str, is_loopback: bool) -> None:
    assert addresses.is_loopback(host) is is_loopback
    assert addresses.is_local(host) is is_loopback
    assert not addresses.is_local("2001:db8::7%1")


def test_an_address_of_an_interface_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            assert address[1] == 9  # the discard port, though nothing is sent

        def getsockname(self) -> Any:
            return ("10.1.2.3", 4321) if self.family == socket.AF_INET else ("fe80::7%eth0", 4321)

    monkeypatch.setattr(socket, "socket", Probe)
    assert addresses.is_local("10.1.2.3")
    assert not addresses.is_local("10.1.2.4")
    assert addresses.is_local("fe80::7")
    assert not addresses.is_local("fe80::8")


@pytest.mark.parametrize(
    ("chosen", "only_tcp"),
    [("tcp", True), ("tcp,self", True), ("self,tcp", True), ("tcp,posix", False), ("all", False)],
)
def test_the_lanes_that_a_user_chooses(
    monkeypatch: pytest.MonkeyPatch, chosen: str, only_tcp: bool
) -> None:
    monkeypatch.setenv("UCX_TLS", chosen)
    assert context._has_only_tcp_lanes(loopback=False) is only_tcp
    assert context._has_only_tcp_lanes(loopback=True) is only_tcp


# Lanes and hints.


@pytest.mark.parametrize(
    ("names", "reads", "pins"),
    [
        ([], False, False),
        (["posix/memory", "tcp/eth0", "self/memory"], False, False),
        (["tcp/eth0", "cma/memory"], True, False),
        (["xpmem/memory"], True, False),
        (["rc_mlx5/mlx5_0:1"], True, True),
        (["ud_verbs/mlx5_0:1"], False, True),
        (["tcp/rc"], False, False),
    ],
)
def test_the_capabilities_of_lanes(names: list[str], reads: bool, pins: bool) -> None:
    assert lanes_read_remotely(names) is reads
    assert lanes_pin_memory(names) is pins


def test_each_missing_lane_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scope, adapters = tmp_path / "scope", tmp_path / "adapters"
    monkeypatch.delenv("UCX_TLS", raising=False)
    monkeypatch.setattr(diagnostics, "_PTRACE_SCOPE", scope)
    monkeypatch.setattr(diagnostics, "_CUDA_DRIVER", "libsplitarrow-missing.so")
    for module in (lanes, diagnostics):
        monkeypatch.setattr(module, "ADAPTERS_FOLDER", adapters)
    no_cma, no_rdma, no_cuda = diagnostics.list_performance_hints(["posix/memory"])
    assert "no cma: processes cannot read each other's memory here" in no_cma
    assert no_rdma == f"no RDMA: this host has no adapter ({adapters} is empty)"
    assert "libsplitarrow-missing.so is not installed" in no_cuda
    scope.write_text("0\n")
    assert diagnostics.list_performance_hints(["posix/memory"])[0] == no_cma
    scope.write_text("2\n")
    assert "ptrace_scope is 2," in diagnostics.list_performance_hints(["posix/memory"])[0]
    assert diagnostics.list_performance_hints(["cma/memory"]) == [no_rdma, no_cuda]
    monkeypatch.setattr(diagnostics, "_CUDA_DRIVER", None)  # this process
    for name in ("mlx5_1", "mlx5_0"):
        (adapters / name).mkdir(parents=True)
    (hint,) = diagnostics.list_performance_hints(["cma/memory", "tcp/eth0"])
    assert "although this host has mlx5_0, mlx5_1:" in hint
    assert diagnostics.list_performance_hints(["cma/memory", "rc_mlx5/mlx5_0:1"]) == []
    monkeypatch.setenv("UCX_TLS", "tcp")
    chosen, _ = diagnostics.list_performance_hints(["tcp/eth0"])
    assert chosen == "UCX_TLS=tcp is set, which excludes other lanes"


# Timers and wakeups.


def test_a_timer_is_readable_once_it_has_expired() -> None:
    timer = timers.create()
    try:
        assert not is_readable(timer)
        timers.start(timer, 1_500_000_000_000)
        assert not is_readable(timer)
        timers.start(timer, 1)
        assert is_readable(timer, 10)
        timers.start(timer, 0)
        assert not is_readable(timer)
        assert not os.get_inheritable(timer)
        assert not os.get_blocking(timer)
    finally:
        os.close(timer)


def test_the_time_of_a_timer_is_in_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def start(timer: int, flags: int, value: Any, old: Any) -> None:
        times = value.it_value.tv_sec, value.it_value.tv_nsec, value.it_interval.tv_nsec
        started.append((timer, flags, *times))

    monkeypatch.setattr(timers, "_libc", SimpleNamespace(timerfd_settime=start))
    timers.start(7, 2_000_000_003)
    timers.start(7, 999_999_999)
    assert started == [(7, 0, 2, 3, 0), (7, 0, 0, 999_999_999, 0)]


def test_a_process_without_descriptors_gets_no_timer_and_no_wakeup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created: list[int] = []
    create = timers.create

    def record() -> int:
        created.append(create())
        return created[-1]

    def refuse() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(timers, "create", record)
    monkeypatch.setattr(select, "epoll", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Wakeup(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(created[0])
    results = [-1, 0]
    monkeypatch.setattr(timers, "_libc", SimpleNamespace(timerfd_create=lambda *_: results.pop(0)))
    monkeypatch.setattr(timers, "_ffi", SimpleNamespace(errno=24))
    with pytest.raises(OSError, match="Too many open files"):
        create()
    assert create() == 0


def test_a_wakeup_is_readable_after_an_event_or_once_it_is_set() -> None:
    events, peer = socket.socketpair()
    with events, peer:
        wakeup = Wakeup(events.fileno())
        assert not is_readable(wakeup.fileno())
        peer.send(b"x")
        assert is_readable(wakeup.fileno(), 10)
        events.recv(1)
        assert not is_readable(wakeup.fileno())
        assert not wakeup.is_set
        wakeup.set()
        assert wakeup.is_set
        assert is_readable(wakeup.fileno(), 10)
        wakeup.clear()
        assert not wakeup.is_set
        assert not is_readable(wakeup.fileno())
        wakeup.close()
        wakeup.close()
        wakeup.set()
        assert wakeup.fileno() == -1


def test_the_pauses_of_a_wakeup_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    events, peer = socket.socketpair()
    delays: list[int] = []
    monkeypatch.setattr(timers, "start", lambda timer, delay: delays.append(delay))
    with events, peer:
        wakeup = Wakeup(events.fileno())
        wakeup.clear()
        assert delays == []
        for _ in range(9):
            wakeup.set_later()
        assert delays == [20_000 << n for n in range(7)] + [2_000_000] * 2
        wakeup.reset_pause()
        wakeup.set_later()
        wakeup.clear()
        wakeup.set()
        assert delays[9:] == [20_000, 0, 1]
        wakeup.close()


def test_a_wakeup_may_have_descriptor_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was started without standard input."""
    events, peer = socket.socketpair()
    started: list[tuple[int, int]] = []
    closed: list[int] = []
    with events, peer:
        wakeup = Wakeup(events.fileno())
        real, wakeup._timer = wakeup._timer, 0
        with monkeypatch.context() as patch:
            patch.setattr(timers, "start", lambda *arguments: started.append(arguments))
            patch.setattr(os, "close", closed.append)
            wakeup.set(5)
            wakeup.close()
            wakeup.close()
            wakeup.set(5)
        os.close(real)
    assert (started, closed, wakeup.fileno()) == ([(0, 5)], [0], -1)


# Closing connections.


class Closing:
    """A connection that is closed after some calls, or once it is forced."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.forced: list[bool] = []

    def finish(self, *, force: bool) -> bool:
        self.forced.append(force)
        self.left -= 1
        return force or self.left == 0


def test_connections_finish_on_one_thread_and_are_forced_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses = Clock(0.0), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(linger, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    wait_until(lambda: linger._thread is None)
    started = threading.Event()
    monkeypatch.setattr(linger, "_thread", started)  # as if one were running
    connections = [Closing(1), Closing(3), Closing(-1)]
    for connection in connections:
        linger.linger(connection)
    linger._run()
    assert linger._thread is None
    assert linger._closing == []
    assert [connection.forced for connection in connections[:2]] == [[False], [False] * 3]
    assert connections[2].forced == [False] * (len(pauses) - 1) + [True]
    assert sum(pauses[:-1]) >= 1 > sum(pauses[:-2])
    assert pauses[:9] == [0.0005, 0.001, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.01, 0.01]
    last = Closing(2)
    linger.linger(last)
    wait_until(lambda: linger._thread is None)
    assert last.forced == [False, False]


def test_memory_is_retained_for_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(linger, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(linger, "_retained", deque())
    linger.retain(["a"])
    linger.retain([])
    assert len(linger._retained) == 1
    clock.now += 1
    linger.retain(["b"])
    clock.now = 1.999
    linger.retain([])
    assert [memory for _, memory in linger._retained] == [["a"], ["b"]]
    clock.now = 2.0
    linger.retain([])
    assert [memory for _, memory in linger._retained] == [["b"]]
    clock.now += 1
    linger.retain([])
    assert not linger._retained


# The log of the library.


_NO_ARGUMENTS = ffi.new("char[64]")
"""In place of a va_list."""


def emit(level: int, line: int = 1, text: bytes = b"what happened") -> int:
    format, file = ffi.new("char[]", text), ffi.new("char[]", b"file.c")
    nothing = ffi.cast("void *", ffi.addressof(_NO_ARGUMENTS))
    return library_log._handle(file, line, ffi.NULL, level, ffi.NULL, format, nothing)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, logging.CRITICAL),
        (1, logging.ERROR),
        (2, logging.WARNING),
        (3, logging.INFO),
        (4, logging.DEBUG),
        (9, logging.DEBUG),
    ],
)
def test_the_library_s_events_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: int, expected: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(library_log, "_limiter", LogLimiter(clock=clock))
    for name in ("UCX_LOG_LEVEL", "UCX_LOG_FILE"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level(logging.DEBUG, "splitarrow.ucx"):
        assert [emit(level) for _ in range(3)] == [0] * 3
        emit(level, line=2)
        clock.now += 60
        emit(level)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (expected, "what happened"),
        (expected, "what happened"),
        (expected, "what happened (2 more times before)"),
    ]


def test_an_event_is_logged_up_to_999_bytes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_log, "_limiter", LogLimiter())
    with caplog.at_level(logging.DEBUG, "splitarrow.ucx"):
        emit(1, text=b"x" * 998 + b"\xff" + b"y" * 5)
    assert [record.message for record in caplog.records] == ["x" * 998 + "\ufffd"]


def test_the_log_of_the_library_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr(library_log, "ucs", SimpleNamespace(ucs_log_push_handler=pushed.append))
    library_log.install()
    assert pushed == [library_log._handle]


@pytest.mark.parametrize("name", ["UCX_LOG_LEVEL", "UCX_LOG_FILE"])
def test_a_configured_log_of_the_library_continues(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(library_log, "_limiter", LogLimiter())
    monkeypatch.setenv(name, "x")
    assert [emit(9), emit(9)] == [1, 1]


def test_a_thread_of_the_library_that_repeats_an_event_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(library_log, "_limiter", LogLimiter())
    monkeypatch.setattr(library_log, "time", SimpleNamespace(sleep=pauses.append))
    for _ in range(150):
        emit(9)
    assert pauses == []
    monkeypatch.setattr(library_log, "_limiter", LogLimiter())
    done = threading.Event()

    def repeat() -> None:
        for _ in range(103):
            emit(9)
        done.set()

    _thread.start_new_thread(repeat, ())  # not a thread of the module threading
    assert done.wait(30)
    assert pauses == [0.01] * 2


# Receiving.


MIB = 1 << 20


@pytest.mark.parametrize(
    ("bodies", "reads", "read_bytes", "has_room"),
    [
        ([], None, 0, True),
        ([99 * MIB], None, 0, True),
        ([99 * MIB], 0, 0, True),
        ([], 1, 99 * MIB, True),
        ([16 * MIB] * 2, None, 0, False),
        ([16 * MIB, 16 * MIB - 1], None, 0, True),
        ([16 * MIB], 1, 16 * MIB, False),
        ([16 * MIB], 1, 16 * MIB - 1, True),
        ([1] * 3, None, 0, True),
        ([1] * 4, None, 0, False),
        ([1] * 2, 1, 1, True),
        ([1] * 2, 2, 2, False),
    ],
)
def test_two_to_four_bodies_are_received_at_a_time(
    bodies: list[int], reads: int | None, read_bytes: int, has_room: bool
) -> None:
    receiver: Any = Receiver.__new__(Receiver)
    receiver._bodies = [SimpleNamespace(body=SimpleNamespace(nbytes=size)) for size in bodies]
    receiver._remote_reads = None
    if reads is not None:
        receiver._remote_reads = SimpleNamespace(count=reads, nbytes=read_bytes)
    assert receiver._has_room is has_room


# Remote bodies.


GAP = 64 << 10


@pytest.mark.parametrize(
    ("spans", "pieces", "offsets", "nbytes"),
    [
        ([], [], [], 0),
        ([(0, 0), (9, 0)], [], [0, 0], 0),
        ([(128, 1)], [(128, 1)], [0], 64),
        ([(128, 64), (192, 65)], [(128, 129)], [0, 64], 192),
        ([(192, 65), (128, 64)], [(128, 129)], [64, 0], 192),
        ([(0, 64), (GAP + 128, 64)], [(0, GAP + 192)], [0, GAP + 128], GAP + 192),
        ([(0, 64), (GAP + 193, 64)], [(0, 64), (GAP + 193, 64)], [0, 64], 128),
        (
            [(0, 65), (0, 0), (1 << 20, 1), (0, 65)],
            [(0, 65), (1 << 20, 1)],
            [0, 0, 128, 0],
            192,
        ),
    ],
)
def test_buffers_that_are_close_are_read_in_one_piece(
    spans: list[tuple[int, int]], pieces: list[tuple[int, int]], offsets: list[int], nbytes: int
) -> None:
    plan = remote_reads._plan_read(spans)
    assert (plan.pieces, plan.nbytes) == (pieces, nbytes)
    assert [o for o, (_, n) in zip(plan.offsets, spans, strict=True) if n] == [
        o for o, (_, n) in zip(offsets, spans, strict=True) if n
    ]


@pytest.mark.parametrize(
    ("behind", "start", "moved"),
    [(0, 128, 0), (1, 128, 64), (63, 128, 64), (64, 128, 0), (4095, 128, 0), (1, 0, 0)],
)
def test_a_target_is_not_just_behind_its_source(behind: int, start: int, moved: int) -> None:
    buffer = pa.allocate_buffer(start + 256)
    view = memoryview(buffer).cast("B")
    view[:] = b"x" * len(view)
    memory = ReceivedBody(buffer, view, start, 256)
    pieces = [(192, 65), (7 << 20, 128)]
    address = buffer.address + start - 192 - behind + (5 << 12)
    assert remote_reads._prepare(memory, pieces, address) is memory
    assert memory.start == start - moved
    expected = b"x" * (memory.start + 65) + bytes(63) + b"x" * (128 + moved)
    assert bytes(view) == expected
    assert remote_reads._prepare(memory, [], 0).start == start - moved


def test_a_local_region_keeps_to_its_memory() -> None:
    body = ReceivedBody.copy(bytes(range(100)), headroom=64)
    region = remote_reads.LocalRegion(body)
    region.check()
    assert region.size == 100
    assert region.buffer(0, 100, None).to_pybytes() == bytes(range(100))
    assert region.buffer(99, 1, None).to_pybytes() == b"c"
    assert region.buffer(100, 0, None).size == 0
    for offset, nbytes in [(-1, 1), (0, -1), (1, 100), (101, 0)]:
        with pytest.raises(ProtocolError, match="outside a region of 100 bytes"):
            region.buffer(offset, nbytes, None)
    prefix = bytes(64)
    found = region.prefixed_buffer(prefix, 0, 100, None)
    assert found is not None
    assert found.to_pybytes() == prefix + bytes(range(100))
    assert found.address == body.buffer.address
    assert region.prefixed_buffer(prefix + b"x", 0, 100, None) is None
    assert region.prefixed_buffer(prefix, 0, 101, None) is None
    assert region.prefixed_buffer(prefix, 1, 99, None) is None
    short = region.prefixed_buffer(b"ab", 0, 3, None)
    assert short is not None
    assert short.to_pybytes() == b"ab\0\1\2"


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


class Library:
    """Takes the place of the library: requests are numbers, and so are their statuses."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.statuses: dict[Any, int] = {}
        self.freed: list[Any] = []
        self.calls: list[Any] = []

    def ucp_am_recv_data_nbx(
        self, worker: Any, data: bytes, target: Any, length: int, param: Any
    ) -> Any:
        ffi.memmove(target, data, length)
        return self.results.pop(0)

    def ucp_get_nbx(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        return self.results.pop(0)

    def ucp_request_check_status(self, request: Any) -> int:
        return self.statuses[request]

    def ucp_request_free(self, request: Any) -> None:
        self.freed.append(request)


@pytest.fixture
def receiver() -> Any:
    stub: Any = SimpleNamespace(handle="worker", events=SimpleNamespace())
    return Receiver(stub, "endpoint", Limits(), expects_farewell=True)


def test_large_metadata_arrives_at_once_or_later(
    monkeypatch: pytest.MonkeyPatch, receiver: Any
) -> None:
    library = Library("now", "later", "broken")
    now: dict[str, int] = {"now": OK, "later": IN_PROGRESS, "broken": -3}
    monkeypatch.setattr(receiving, "ucp", library)
    monkeypatch.setattr(receiving, "get_status", now.__getitem__)
    frames: list[Any] = []
    receiver._receive_metadata(frames, b"abc", 3)
    assert frames == [UntaggedFrame(b"abc")]
    assert receiver.bytes_received == 3
    receiver._receive_metadata(frames, b"defgh", 5)
    assert (len(frames), receiver.at_boundary) == (1, False)
    with pytest.raises(StatusError):
        receiver._receive_metadata(frames, b"ijklmno", 7)
    library.statuses["later"] = IN_PROGRESS
    receiver._take_pending(frames)
    assert (len(frames), library.freed) == (1, [])
    library.statuses["later"] = OK
    receiver._take_pending(frames)
    assert frames[1:] == [UntaggedFrame(b"defgh")]
    assert (library.freed, receiver.at_boundary, receiver.bytes_received) == (["later"], True, 8)


def test_the_end_of_a_stream_is_kept_back(receiver: Any) -> None:
    frames: list[Any] = []
    for payload in (b"\1\0\0\0\0x", b"\0\1\0\0\0", b"\2\0\0\0\0{}", b""):
        receiver._add_untagged(frames, payload)
    assert frames == [UntaggedFrame(b"\1\0\0\0\0x"), UntaggedFrame(b"")]
    assert receiver._end == [b"\0\1\0\0\0", b"\2\0\0\0\0{}"]
    assert receiver.bytes_received == 6 + 5 + 7


def test_pending_messages_are_split_by_their_status(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    library.statuses = {1: OK, 2: IN_PROGRESS, 3: -3, 4: -5, 5: OK}
    monkeypatch.setattr(receiving, "ucp", library)
    pending: Any = [SimpleNamespace(request=number) for number in range(1, 6)]
    completed, under_way, failed = receiving._partition(pending)
    assert [each.request for each in completed] == [1, 5]
    assert [each.request for each in under_way] == [2]
    assert (failed, library.freed) == (-3, [1, 3, 4, 5])


def read_of(spans: list[tuple[int, int]], limits: Limits | None = None) -> remote_reads.RemoteRead:
    region: Any = SimpleNamespace(address=1 << 32, size=1 << 30, key="key")
    payload = memoryview(pack_spans(spans))
    return remote_reads.RemoteRead(7, payload, region, limits or Limits(), BodyPool(), 100)


def test_a_read_is_complete_once_each_request_is(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(ffi.NULL, "a", "b")
    monkeypatch.setattr(remote_reads, "ucp", library)
    monkeypatch.setattr(remote_reads, "get_status", lambda _: IN_PROGRESS)
    read = read_of([(64, 65), (1 << 20, 10), (0, 0), (1 << 25, 20)])
    read.start("endpoint", "param")
    assert (read.nbytes, read.offsets) == (95, [64, 1 << 20, 1 << 25])
    sources = [(call[2], call[3]) for call in library.calls]
    assert sources == [
        (65, (1 << 32) + 64),
        (10, (1 << 32) + (1 << 20)),
        (20, (1 << 32) + (1 << 25)),
    ]
    targets = [int(ffi.cast("uintptr_t", call[1])) for call in library.calls]
    assert [target - targets[0] for target in targets] == [0, 128, 192]
    library.statuses = {"a": IN_PROGRESS, "b": IN_PROGRESS}
    assert read.status() == IN_PROGRESS
    library.statuses["b"] = OK
    assert read.status() == IN_PROGRESS
    assert library.freed == ["b"]
    library.statuses["a"] = OK
    assert read.status() == read.status() == OK
    body = read.body()
    assert parse_spans(bytes(body), region_size=body.region.size, expected=4) == [
        *((0, 65), (128, 10), (0, 0), (192, 20)),
    ]
    assert body.region.size == 256


def test_a_read_fails_with_its_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library("a", "b", "c")
    monkeypatch.setattr(remote_reads, "ucp", library)
    monkeypatch.setattr(remote_reads, "get_status", lambda _: IN_PROGRESS)
    read = read_of([(64, 65), (1 << 20, 10), (1 << 25, 20)])
    read.start("endpoint", "param")
    library.statuses = {"a": OK, "b": -5, "c": -3}
    assert read.status() == -3
    assert library.freed == ["c", "b", "a"]
    library.freed.clear()
    read.abandon()
    assert library.freed == []
    library.results = ["x"]
    monkeypatch.setattr(remote_reads, "get_status", lambda _: -3)
    with pytest.raises(StatusError):
        read_of([(0, 1)]).start("endpoint", "param")


def test_an_abandoned_read_frees_its_requests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library("a", "b")
    monkeypatch.setattr(remote_reads, "ucp", library)
    monkeypatch.setattr(remote_reads, "get_status", lambda _: IN_PROGRESS)
    read = read_of([(0, 65), (1 << 20, 10)])
    read.start("endpoint", "param")
    assert read.abandon() is read.abandon()
    assert library.freed == ["a", "b"]


@pytest.mark.parametrize("name", ["metadata", "rendezvous", "refusal"])
def test_each_kind_of_event_is_work(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A channel with work does not wait for its descriptor."""
    library: Any = Library()
    library.ucp_tag_probe_nb = lambda *_: ffi.NULL
    monkeypatch.setattr(receiving, "ucp", library)
    events = SimpleNamespace(metadata=[], rendezvous=[], refusal=None)
    stub: Any = SimpleNamespace(handle="worker", events=events)
    receiver = Receiver(stub, "endpoint", Limits(), expects_farewell=True)
    assert not receiver.has_work
    setattr(events, name, ["event"])
    assert receiver.has_work


@pytest.mark.parametrize(("value", "prefers"), [(None, False), ("false", False), ("true", True)])
def test_the_library_of_the_system_is_chosen_on_request(
    monkeypatch: pytest.MonkeyPatch, value: str | None, prefers: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(ucx_library, "ffi", SimpleNamespace(dlopen=opened.append))
    monkeypatch.delenv(ucx_library.PREFER_SYSTEM, raising=False)
    if value is not None:
        monkeypatch.setenv(ucx_library.PREFER_SYSTEM, value)
    ucx_library._load("libucp.so")
    assert [Path(name).is_absolute() for name in opened] == [not prefers]


def test_a_worker_that_cannot_wait_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = [OK, -15, -3]
    monkeypatch.setattr(worker, "ucp", SimpleNamespace(ucp_worker_arm=lambda _: statuses.pop(0)))
    stub: Any = SimpleNamespace(handle="worker")
    assert worker.Worker.arm(stub) is True
    assert worker.Worker.arm(stub) is False  # there is work already
    with pytest.raises(TransportError, match="cannot wait for events"):
        worker.Worker.arm(stub)


def test_the_size_of_a_read_is_limited() -> None:
    spans = [(0, 64), (64, 64)]
    assert read_of(spans, Limits(buffers=2, body_bytes=128)).nbytes == 128
    with pytest.raises(LimitError, match="a body of 2 buffers; the limit is 1"):
        read_of(spans, Limits(buffers=1))
    with pytest.raises(LimitError, match="a body of 128 bytes; the limit is 127"):
        read_of(spans, Limits(body_bytes=127))
    read = remote_reads.RemoteRead
    with pytest.raises(ProtocolError):
        read(7, memoryview(b"short"), SimpleNamespace(size=1), Limits(), BodyPool(), 0)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("limit", "is_enough"),
    [(resource.RLIM_INFINITY, True), (164, True), (163, False), (0, False)],
)
def test_a_worker_needs_64_free_descriptors(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_enough: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 100)
    context = nullcontext() if is_enough else pytest.raises(TransportError, match="fewer than 64")
    with context:
        worker._check_free_descriptors()
