"""The transport `ucx` beyond the contract of all transports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.ucx import ADDRESS, connect_pair, program, transfer
from helpers.ucx_header import list_header_constants
from helpers.waiting import wait_until
from splitarrow.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    LimitError,
    MissingExtraError,
    TransportError,
    UriError,
)
from splitarrow.protocol.frames import ReceivedFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import blocking
from splitarrow.transport.base import ConnectOptions, ListenOptions
from splitarrow.transport.memory.files import FileSpan, SourceFile
from splitarrow.transport.registry import find_transport
from splitarrow.transport.ucx import context, links
from splitarrow.transport.ucx import ffi as ucx_library
from splitarrow.transport.ucx.channel import UcxChannel, UcxReaderChannel, UcxServerChannel
from splitarrow.transport.ucx.sending import WINDOW_BYTES


def connect(
    limits: Limits | None = None, uri: DataUri | None = None
) -> tuple[UcxReaderChannel, UcxServerChannel]:
    """Return the reader's channel and the server's channel of one connection."""
    limits = limits or Limits()
    listener = find_transport(DataUri("ucx")).listen(
        uri or DataUri.parse(ADDRESS), ListenOptions(limits=limits)
    )
    return connect_pair(listener, listener.uri, limits)


@pytest.fixture
def pair() -> Iterator[tuple[UcxChannel, UcxChannel]]:
    """Both ends of a connection."""
    client, server = connect()
    yield client, server
    client.abort()
    server.abort()


HEADER = """
#include <stddef.h>
#include <stdio.h>
#include <netinet/in.h>
#include <ucp/api/ucp.h>
#include <ucs/type/cpu_set.h>
#include <ucs/debug/log_def.h>
int main(void) {
%s
return 0; }
"""


def include_folder() -> Path:
    import libucx

    return Path(next(iter(libucx.__path__))) / "include"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_declared_structures_match_the_headers(tmp_path: Path) -> None:
    ffi = ucx_library.ffi
    lines: list[str] = []
    ours: dict[str, list[int]] = {"ucs_status_t": [ffi.sizeof("ucs_status_t")]}
    ours["struct sockaddr_storage"] = [ffi.sizeof("struct sockaddr_storage")]
    for name in re.findall(r"\} (\w+);", ucx_library.DECLARATIONS):
        ours[name] = [ffi.sizeof(name)]
        fields = [] if name == "ucs_cpu_set_t" else ffi.typeof(name).fields
        for field, place in fields:
            if field != "later":
                ours[f"{name}.{field}"] = [place.offset, ffi.sizeof(place.type)]
                lines.append(
                    f'printf("{name}.{field}:%zu %zu\\n", offsetof({name}, {field}), '
                    f"sizeof((({name} *)0)->{field}));"
                )
    lines += [f'printf("{name}:%zu\\n", sizeof({name}));' for name in ours if "." not in name]
    source = tmp_path / "layout.c"
    source.write_text(HEADER % "\n".join(lines))
    program = tmp_path / "layout"
    subprocess.run(["gcc", "-I", include_folder(), source, "-o", program], check=True)
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    theirs = {
        name: [int(number) for number in numbers.split()]
        for name, _, numbers in (line.partition(":") for line in told.splitlines())
    }
    assert len(theirs) > 100
    assert theirs.keys() == ours.keys()
    for name, numbers in ours.items():
        if name == "ucp_request_param_t":  # it reserves room for the fields of later versions
            assert numbers >= theirs[name]
        else:
            assert numbers == theirs[name], name


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_constants_of_the_tests_match_the_headers(tmp_path: Path) -> None:
    """Other tests compare what the package passes to the library with these constants."""
    constants = list_header_constants()
    lines = [f'printf("{name}:%lld\\n", (long long){name});' for name in constants]
    source = tmp_path / "constants.c"
    source.write_text(HEADER % "\n".join(lines))
    program = tmp_path / "constants"
    subprocess.run(["gcc", "-I", include_folder(), source, "-o", program], check=True)
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    theirs = {name: int(number) for name, number in (x.split(":") for x in output.splitlines())}
    assert constants == theirs


def test_frames_arrive_in_both_directions(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, server = pair
    want = (1 << 40) + 7
    assert transfer(client, [TaggedFrame(want, 6, (b"tic", b"ket"))], server, 1)[0].tag == want
    sizes = [0, 1, 63, 4096, 5000, 70_000, 1 << 20, 9 << 20]
    bodies = [os.urandom(size) for size in sizes]
    frames: list[Any] = []
    for number, body in enumerate(bodies):
        middle = len(body) // 3
        frames.append(UntaggedFrame(b"\1" + number.to_bytes(4, "little") + bytes(200)))
        frames.append(TaggedFrame(number, len(body), (body[:middle], b"", body[middle:])))
    got = transfer(server, frames, client, len(frames))
    assert [f.payload for f in got if isinstance(f, UntaggedFrame)] == [f[0] for f in frames[::2]]
    received = {f.tag: f.body for f in got if isinstance(f, ReceivedFrame)}
    assert {tag: bytes(body) for tag, body in received.items()} == dict(enumerate(bodies))
    for body in received.values():
        assert (body.buffer.address + body.start) % 64 == 0
        assert body.start >= 208


def test_large_metadata_arrives(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, server = pair
    payload = b"\1\0\0\0\0" + os.urandom(3 << 20)
    assert transfer(server, [UntaggedFrame(payload)], client, 1) == [UntaggedFrame(payload)]


def test_all_64_bits_of_a_tag_arrive(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, server = pair
    for tag in (0, 1 << 32, (1 << 64) - 1, 255 << 56, 0x0123_4567_89AB_CDEF):
        assert transfer(server, [TaggedFrame(tag, 1, (b"x",))], client, 1)[0].tag == tag


def test_file_spans_are_sent(pair: tuple[UcxChannel, UcxChannel], tmp_path: Path) -> None:
    client, server = pair
    path = tmp_path / "bytes"
    data = os.urandom(300_000)
    path.write_bytes(data)
    file = SourceFile(path)
    parts = (b"before", FileSpan(file, 1000, 250_000), FileSpan(file, 5, 10))
    size = 6 + 250_000 + 10
    got = transfer(server, [TaggedFrame(3, size, parts)], client, 1)
    assert bytes(got[0].body) == b"before" + data[1000:251_000] + data[5:15]
    file.close()


@pytest.mark.parametrize("size", [2000, 3 << 20])
def test_too_large_a_body_is_refused(size: int) -> None:
    client, server = connect(Limits(body_bytes=1000))
    try:
        with pytest.raises(LimitError, match="limit is 1000"):
            transfer(
                server,
                [TaggedFrame(1, 10, (bytes(10),)), TaggedFrame(2, size, (bytes(size),))],
                client,
                2,
            )
    finally:
        client.abort()
        server.abort()


@pytest.mark.parametrize("size", [2000, 3 << 20])
def test_too_large_metadata_is_refused(size: int) -> None:
    client, server = connect(Limits(metadata_bytes=1000))
    try:
        with pytest.raises(LimitError, match="limit is 1000"):
            transfer(server, [UntaggedFrame(bytes([1] * size))], client, 1)
    finally:
        client.abort()
        server.abort()


def test_everything_arrives_before_a_server_closes(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, server = pair
    server.queue([TaggedFrame(1, 4 << 20, (bytes(4 << 20),)), UntaggedFrame(b"\1\0\0\0\0")])
    server.send_some()
    server.close()
    frames = blocking.receive(client, 5)
    while len(frames) < 2:
        frames += blocking.receive(client, 5)
    with pytest.raises(ConnectionLostError, match="closed the connection"):
        blocking.receive(client, 5)
    assert client.at_boundary


def test_closing_takes_bounded_time(pair: tuple[UcxChannel, UcxChannel]) -> None:
    _, server = pair  # the client receives nothing
    server.queue([TaggedFrame(1, 4 << 20, (bytes(4 << 20),))])
    server.send_some()
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 0.5
    wait_until(lambda: server._destroyed)
    assert 0.5 < time.monotonic() - began < 5
    wait_until(lambda: links._thread is None)


def test_a_slow_reader_slows_its_server_down(pair: tuple[UcxChannel, UcxChannel]) -> None:
    """The window also limits a reader whose worker makes progress but matches nothing."""
    client, server = pair
    body = bytes(4096)
    server.queue([TaggedFrame(number, len(body), (body,)) for number in range(20_000)])
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert not server.send_some()
        with client._worker.lock:
            client._worker.progress()
    assert server.bytes_sent <= WINDOW_BYTES + (1 << 20)
    got: list[Any] = []
    while len(got) < 20_000:
        server.send_some()
        got += client.receive_some()
    assert sorted(frame.tag for frame in got) == list(range(20_000))


def test_bodies_over_tcp_lanes_cost_no_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setattr(context, "_contexts", {(False, "another reach"): (0, None)})
    client, server = connect()
    try:
        body = bytes(64 << 10)
        server.queue([TaggedFrame(number, len(body), (body,)) for number in range(8)])
        for _ in range(100):
            server.send_some()
            with client._worker.lock:
                client._worker.progress()
        got: list[Any] = []
        wait_until(lambda: len(got.extend(client.receive_some()) or got) == 8)  # server idle
    finally:
        client.abort()
        server.abort()


def test_large_bodies_wait_at_the_server(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, server = pair
    body = bytes(16 << 20)
    server.queue([TaggedFrame(number, len(body), (body,)) for number in range(10)])
    for _ in range(100):
        assert not server.send_some()
        with client._worker.lock:
            client._worker.progress()
    assert server.bytes_sent == 2 * len(body)


def test_the_end_of_a_stream_waits_until_its_bodies_are_received(
    pair: tuple[UcxChannel, UcxChannel],
) -> None:
    client, server = pair
    server.queue([TaggedFrame(0, 1 << 20, (bytes(1 << 20),))])
    assert server.send_some()
    server.queue([UntaggedFrame(b"\0\1\0\0\0")])
    assert not server.send_some()
    got: list[Any] = []
    while not server.send_some():
        got += client.receive_some()
    while len(got) < 2:
        got += client.receive_some()


def test_interrupt_ends_a_wait(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, _ = pair
    timer = threading.Timer(0.05, client.interrupt)
    timer.start()
    with pytest.raises(ConnectionLostError, match="interrupted"):
        blocking.receive(client, 5)
    timer.join()


def test_a_closed_channel_raises(pair: tuple[UcxChannel, UcxChannel]) -> None:
    client, server = pair
    client.close()
    client.close()
    client.abort()
    assert (client.fileno(), client.send_fileno(), client.lanes) == (-1, -1, [])
    for call in (client.send_some, client.receive_some):
        with pytest.raises(ConnectionLostError, match="is closed"):
            call()
    with pytest.raises(ConnectionLostError, match="closed the connection"):
        blocking.receive(server, 5)


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("ucx://127.0.0.1:0/path", UriError),
        ("ucx://nobody.invalid:0", ConfigError),
        ("ucx://192.0.2.1:0", ConfigError),
    ],
)
def test_an_address_that_cannot_be_bound_is_an_error(uri: str, error: type[Exception]) -> None:
    parsed = DataUri.parse(uri)
    with pytest.raises(error, match=re.escape(parsed.host)):
        find_transport(parsed).listen(parsed, ListenOptions())


@pytest.mark.parametrize(
    ("uri", "error"), [("ucx://", UriError), ("ucx://nobody.invalid:1", ConnectError)]
)
def test_an_address_that_cannot_be_reached_is_an_error(uri: str, error: type[Exception]) -> None:
    parsed = DataUri.parse(uri)
    with pytest.raises(error):
        find_transport(parsed).connect(parsed, ConnectOptions(timeout=2))


def test_a_port_that_is_taken_is_named() -> None:
    with splitarrow.serve({}, listen=[ADDRESS], control=None) as server:
        taken = server._daemon.uris[0].address
        with pytest.raises(ConfigError, match=re.escape(taken)):
            splitarrow.serve({}, listen=[taken], control=None)


def test_connecting_to_another_protocol_fails_in_time() -> None:
    with splitarrow.serve({}, listen=["tcp://127.0.0.1:0"], control=None) as server:
        port = server._daemon.uris[0].port
        uri = DataUri.parse(f"ucx://127.0.0.1:{port}")
        began = time.monotonic()
        with pytest.raises(ConnectError, match=str(port)):
            find_transport(uri).connect(uri, ConnectOptions(timeout=1))
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("timeout", [0.2, 0.7])
def test_connecting_to_a_silent_server_fails_in_time(timeout: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = DataUri.parse(f"ucx://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        with pytest.raises(ConnectError, match=f"no answer within {timeout} s"):
            find_transport(uri).connect(uri, ConnectOptions(timeout=timeout))
        assert timeout <= time.monotonic() - began < timeout + 5


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.long
def test_hundreds_of_connections_leak_nothing() -> None:
    table = pa.table({"n": range(100)})
    with splitarrow.serve({"t": table}, listen=[ADDRESS], control=None) as server:
        uri = server.uri("t")

        def read(_: int) -> None:
            with splitarrow.open(uri) as stream:
                assert stream.read_all().num_rows == 100

        read(0)
        wait_until(lambda: server.stats()["connections"] == 0)
        wait_until(lambda: links._thread is None)
        before, memory = descriptors(), 0
        for turn in range(2):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(read, range(100)))
            if not turn:
                memory = resident()
        wait_until(lambda: server.stats()["connections"] == 0)
        wait_until(lambda: links._thread is None)
        wait_until(lambda: descriptors() <= before)
        assert resident() - memory < 100 << 20


@pytest.mark.slow
def test_concurrent_streams_never_mix() -> None:
    """Run 64 streams at a time, each with its own pattern."""
    tables = {
        f"t{number}": pa.table({"x": pa.array([number] * 30_000, pa.uint8())})
        for number in range(64)
    }
    listen = [ADDRESS]
    barrier = threading.Barrier(64)
    with splitarrow.serve(tables, listen=listen, control=None) as server:

        def read(number: int) -> None:
            with splitarrow.open(server.uri(f"t{number}"), batch_rows=1000) as stream:
                barrier.wait(30)
                for batch in stream:
                    assert batch.column("x").to_pylist() == [number] * batch.num_rows
                assert stream.rows_received == 30_000

        with ThreadPoolExecutor(64) as pool:
            list(pool.map(read, range(64)))


SERVER = """
import sys, pyarrow, splitarrow
table = pyarrow.table({"x": range(1 << 20)})
with splitarrow.serve({"t": table}, listen=[sys.argv[1]], control=None) as server:
    print(server.uri("t"), flush=True)
    sys.stdin.read()
"""
READER = """
import sys, splitarrow
stream = splitarrow.open(sys.argv[1], batch_rows=1000)
next(stream)
print("open", flush=True)
sys.stdin.read()
"""


LANES = [pytest.param("^sysv", id="shared memory"), pytest.param("tcp", id="tcp")]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
def test_a_reader_notices_a_dead_server(lanes: str) -> None:
    with program(SERVER, ADDRESS, UCX_TLS=lanes) as server:
        assert server.stdout is not None
        uri = server.stdout.readline().strip()
        with splitarrow.open(uri, batch_rows=1000, stall_timeout=20) as stream:
            next(stream)
            assert isinstance(stream, splitarrow.Stream)
            channel = next(iter(stream._reader.channels.values()))
            assert isinstance(channel, UcxChannel)
            assert any(lane.startswith("posix") for lane in channel.lanes) == (lanes != "tcp")
            server.send_signal(signal.SIGKILL)
            died = time.monotonic()
            with pytest.raises(TransportError):
                for _ in stream:
                    pass
            assert time.monotonic() - died < 2


@pytest.mark.parametrize("lanes", LANES)
def test_a_server_notices_a_dead_reader(lanes: str) -> None:
    table = pa.table({"x": pa.array(np.arange(1 << 20))})
    with splitarrow.serve({"t": table}, listen=[ADDRESS], control=None) as server:
        with program(READER, server.uri("t"), UCX_TLS=lanes) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "open\n"
            assert server.stats()["connections"] == 1
            reader.send_signal(signal.SIGKILL)
            wait_until(lambda: server.stats()["connections"] == 0, seconds=2)
        with splitarrow.open(server.uri("t")) as stream:
            assert stream.read_all() == table


@pytest.mark.slow
def test_readers_that_leave_early_do_not_disturb_others() -> None:
    """All readers are sent the same memory."""
    with program(SERVER, ADDRESS) as server:
        assert server.stdout is not None
        uri = server.stdout.readline().strip()
        for _ in range(2):
            streams = [splitarrow.open(uri) for _ in range(10)]
            for stream in streams:
                stream.close()
            with splitarrow.open(uri, connect_timeout=5) as stream:
                assert stream.read_all().num_rows == 1 << 20
        server.send_signal(signal.SIGKILL)


def test_a_stopped_server_causes_a_stall_error() -> None:
    with program(SERVER, ADDRESS) as server:
        assert server.stdout is not None
        with splitarrow.open(
            server.stdout.readline().strip(), batch_rows=1000, stall_timeout=0.5
        ) as stream:
            next(stream)
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(TransportError, match="silent"):
                for _ in stream:
                    pass
        server.send_signal(signal.SIGKILL)


def test_the_error_names_a_missing_extra() -> None:
    script = """if True:
        import sys
        sys.modules["libucx"] = None
        import splitarrow
        try:
            splitarrow.open("ucx://127.0.0.1:1?want_data=0x10000000001&ticket=t")
        except splitarrow.errors.MissingExtraError as error:
            print(error)
    """
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "splitarrow[ucx]" in told.stdout
    assert issubclass(MissingExtraError, ValueError)


def test_the_environment_is_not_changed() -> None:
    script = """if True:
        import os, sys
        before = dict(os.environ)
        import splitarrow
        with splitarrow.serve({}, listen=["ucx://127.0.0.1:0"], control=None):
            pass
        assert dict(os.environ) == before
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
