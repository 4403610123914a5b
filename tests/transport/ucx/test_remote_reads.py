"""Remote bodies over `ucx`: the client reads them from the server's memory and frees them."""

from __future__ import annotations

import array
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.ucx import ADDRESS, connect_pair, program, transfer
from helpers.waiting import wait_until
from splitarrow.errors import (
    ConnectError,
    DatasetError,
    LimitError,
    ProtocolError,
    SplitArrowError,
    TransportError,
    UriError,
    UsageError,
)
from splitarrow.protocol.frames import ReceivedFrame, TaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.payloads import parse_offsets
from splitarrow.protocol.regions import RegionAnnouncement, RemoteBody
from splitarrow.protocol.tags import BodyType, pack_body_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.server.bodies import remote
from splitarrow.transport.base import ListenOptions
from splitarrow.transport.memory.files import FileSpan, SourceFile
from splitarrow.transport.memory.mapped_region import MappedRegion
from splitarrow.transport.ucx import UcxTransport
from splitarrow.transport.ucx.sending import get_address
from splitarrow.transport.ucx.uri import UcxOptions, find_remote_request_tag

TAG = pack_body_tag(7, BodyType.OFFSETS)


@pytest.fixture
def deliver_all_remotely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver even the smallest bodies remotely."""
    monkeypatch.setattr(remote.RemoteReadAccess, "min_body_bytes", 0)


@cache
def some_table() -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for size in (0, 1, 3_000, 50_000, 7):
        numbers = range(size)
        columns = [
            pa.array([None if n % 5 == 0 else n for n in numbers], pa.int64()),
            pa.array([f"text {n}" for n in numbers], pa.string()),
            pa.array([f"word {n % 3}" for n in numbers], pa.string()).dictionary_encode(),
            pa.array([[n, None] for n in numbers], pa.list_(pa.int32())),
        ]
        batches.append(pa.record_batch(columns, names=["n", "s", "d", "l"]))
    return pa.Table.from_batches(batches).unify_dictionaries()


def numbers_file(path: Path, batches: int = 64, rows: int = 1 << 17) -> pa.Table:
    """Write a file of batches of 1 MiB, all of their values different."""
    schema = pa.schema({"x": pa.int64()})
    written: list[pa.RecordBatch] = []
    with pa.ipc.new_file(str(path), schema) as writer:
        for number in range(batches):
            column = pa.array(np.arange(number * rows, (number + 1) * rows))
            written.append(pa.record_batch([column], schema=schema))
            writer.write_batch(written[-1])
    return pa.Table.from_batches(written)


def source_of(kind: str, table: pa.Table, folder: Path) -> Any:
    path = folder / "data"
    if kind == "table":
        return table
    if kind == "parquet":
        pq.write_table(table, path.with_suffix(".parquet"), row_group_size=20_000)
        return path.with_suffix(".parquet")
    if kind == "folder":
        path.mkdir()
        for number in range(3):
            part = table.slice(number * 20_000, 20_000)
            with pa.ipc.new_file(str(path / f"{number}.arrow"), table.schema) as writer:
                writer.write_table(part)
        return path
    codec = "lz4" if kind == "compressed" else None
    options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=True)
    make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    path = path.with_suffix(".arrows" if kind == "stream" else ".arrow")
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", ["file", "compressed", "stream", "parquet", "table", "folder"])
@pytest.mark.usefixtures("deliver_all_remotely")
def test_data_arrives_as_it_was_served(kind: str, tmp_path: Path) -> None:
    table = some_table()
    source = source_of(kind, table, tmp_path)
    with splitarrow.serve({"d": source}, listen=[ADDRESS]) as server:
        for _ in range(2):
            with splitarrow.open(server.uri("d"), require_transport="cma") as stream:
                got = stream.read_all()
                assert stream.transport.startswith("ucx (")
            got.validate(full=True)
            assert got.cast(table.schema).equals(table)
        with splitarrow.open(server.uri("d"), columns=["l", "n"], validate="full") as stream:
            assert stream.read_all().equals(table.select(["l", "n"]))
        assert server.stats()["bytes_lent"] > 1 << 20
        wait_until(lambda: server.stats()["leases"] == 0)
        assert server.stats()["bad_frees"] == 0


@pytest.mark.usefixtures("deliver_all_remotely")
async def test_the_asynchronous_client_reads_remote_bodies(tmp_path: Path) -> None:
    table = some_table()
    source = source_of("file", table, tmp_path)
    with splitarrow.serve({"d": source}, listen=[ADDRESS]) as server:
        async with splitarrow.aio.open(server.uri("d")) as stream:
            assert await stream.read_all() == table
        assert server.stats()["bytes_lent"] > 1 << 20


def test_small_bodies_are_packed() -> None:
    table = pa.table({"x": range(100)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS]) as server:
        with splitarrow.open(server.uri("d")) as stream:
            assert stream.read_all() == table
        assert server.stats()["bytes_lent"] == 0


def test_offsets_are_freed_while_their_batches_live(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 8)
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        with splitarrow.open(server.uri("d")) as stream:
            batches = list(stream)
        assert server.stats()["bytes_lent"] >= table.nbytes
        wait_until(lambda: server.stats()["leases"] == 0)
        assert pa.Table.from_batches(batches) == table


def test_a_low_limit_on_leases_is_enough(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 16)
    source = {"d": tmp_path / "d.arrow"}
    with (
        splitarrow.serve(source, listen=[ADDRESS], max_leased=3 << 20) as server,
        splitarrow.open(server.uri("d")) as stream,
    ):
        assert stream.read_all() == table


def test_a_uri_may_request_packed_bodies(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 4)
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        with splitarrow.open(server.uri("d") + "&body=packed") as stream:
            next(stream)
            with open("/proc/self/maps") as maps:  # the server maps the file and sends from there
                assert str(tmp_path / "d.arrow") in maps.read()
            assert stream.read_all() == table.slice(1 << 17)
        assert server.stats()["bytes_lent"] == 0


def test_a_listener_may_offer_packed_bodies_only() -> None:
    table = pa.table({"x": range(100_000)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS + "?body=packed"]) as server:
        uri = server.uri("d")
        assert "remote_handle" not in uri
        with splitarrow.open(uri) as stream:
            assert stream.read_all() == table
        with pytest.raises(UriError, match="body=remote needs a remote_handle"):
            splitarrow.open(uri.replace("body=packed", "body=remote"))


def test_body_is_packed_or_remote() -> None:
    for parameters in ("body=other", "body="):
        with pytest.raises(UriError, match="'packed' or 'remote'"):
            UcxOptions.from_uri(DataUri.parse(f"ucx://h:1?{parameters}"))
    with pytest.raises(UriError, match="body is given twice"):
        UcxOptions.from_uri(DataUri.parse("ucx://h:1?body=packed&body=remote"))


READ = """
import sys, splitarrow
try:
    with splitarrow.open(sys.argv[1]) as stream:
        print(stream.read_all().num_rows)
except splitarrow.errors.SplitArrowError as error:
    print(type(error).__name__, error)
"""


def test_lanes_that_cannot_read_get_packed_bodies() -> None:
    table = pa.table({"x": range(100_000)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS]) as server:
        for uri, expected in (
            (server.uri("d"), "100000\n"),
            (
                server.uri("d") + "&body=remote",
                f"ConnectError body=remote: no lane to {DataUri.parse(server.uri('d')).address} "
                "reads remote memory; the lanes are tcp",
            ),
        ):
            with program(READ, uri, UCX_TLS="tcp") as reader:
                assert reader.communicate(timeout=30)[0].startswith(expected)
        assert server.stats()["bytes_lent"] == 0


def test_a_client_reaches_a_server_with_other_settings() -> None:
    """The server has fewer lanes than the client would choose."""
    server_text = """
import sys, splitarrow, pyarrow
table = pyarrow.table({"x": range(100_000)})
with splitarrow.serve({"t": table}, listen=[sys.argv[1]]) as server:
    print(server.uri("t"), flush=True)
    sys.stdin.read()
"""
    with program(server_text, ADDRESS, UCX_CMA_MEMORY_INVALIDATE="n") as server:
        assert server.stdout is not None
        uri = server.stdout.readline().strip()
        assert "remote_handle" not in uri
        with splitarrow.open(uri) as stream:
            assert stream.read_all().num_rows == 100_000
        server.kill()


def test_a_transport_may_be_required(tmp_path: Path) -> None:
    table = pa.table({"x": range(10)})
    listen = ["tcp://127.0.0.1:0", ADDRESS]
    with splitarrow.serve({"d": table}, listen=listen, control="grpc://127.0.0.1:0") as server:
        uri = server.uri("d", scheme="ucx")
        for name in ("ucx", "posix", "posix/memory"):
            with splitarrow.open(uri, require_transport=name) as stream:
                assert stream.read_all() == table
        with pytest.raises(
            ConnectError, match=r"over ucx \(.*posix/memory.*\), and rc is required"
        ):
            splitarrow.open(uri, require_transport="rc")
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            with client.read("d", require_transport="ucx") as stream:
                assert stream.transport.startswith("ucx (")
                assert stream.read_all() == table
            with client.read("d", require_transport="flight", transport="flight") as stream:
                assert stream.read_all() == table
            with pytest.raises(ConnectError, match="rc_mlx5 is required"):
                client.read("d", require_transport="rc_mlx5", resume_attempts=0)
        command = [sys.executable, "-m", "splitarrow", "fetch", "--require-transport", "dc"]
        target = tmp_path / "d.arrow"
        done = subprocess.run(
            [*command, uri, "-o", target], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1
        assert "dc is required" in " ".join(done.stderr.split())
        assert not target.exists()


def test_the_uri_sets_busy_polling() -> None:
    table = pa.table({"x": range(100_000)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS + "?busy_poll=200"]) as server:
        uri = server.uri("d")
        assert "busy_poll=200" in uri
        with splitarrow.open(uri) as stream:
            assert stream.read_all() == table
        with pytest.raises(UriError, match="busy_poll='x'"):
            splitarrow.open(uri.replace("busy_poll=200", "busy_poll=x"))


# One connection, whose server is driven by hand.


class Ends:
    """A reader that requests remote bodies, and a server that a test drives."""

    def __init__(self, limits: Limits) -> None:
        uri = DataUri.parse(ADDRESS + "?want_data=0x10000000001&free_data=0x10000000002")
        listener = UcxTransport().listen(uri, ListenOptions(map_file=lambda file: None))
        self.uri = listener.uri
        request_uri = DataUri.parse(f"{listener.uri}&body=remote")
        self.reader, self.server = connect_pair(listener, request_uri, limits)

    def announcement(self, region: MappedRegion) -> TaggedFrame:
        part = self.server.announce(region)
        return TaggedFrame(self.uri.require_want_data(), part.nbytes, (part,))

    def remote_body(self, *spans: tuple[int, int], total: int | None = None) -> TaggedFrame:
        flat = [number for span in spans for number in span]
        total = sum(flat[1::2]) if total is None else total
        payload = struct.pack(f"<{2 + len(flat)}Q", total, len(spans), *flat)
        return TaggedFrame(TAG, len(payload), (payload,))


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(getattr(request, "param", Limits()))
    yield made
    made.reader.abort()
    made.server.abort()


@pytest.fixture
def region(tmp_path: Path) -> MappedRegion:
    """4 MiB, each page of which is filled with its number."""
    path = tmp_path / "region"
    pages = [number.to_bytes(8, "little") * (mmap.PAGESIZE // 8) for number in range(1024)]
    path.write_bytes(b"".join(pages))
    return MappedRegion(os.open(path, os.O_RDONLY), 4 << 20)


def test_requests_and_frees_have_their_tags(ends: Ends, region: MappedRegion) -> None:
    request = TaggedFrame(ends.uri.require_want_data(), 3, (b"abc",))
    (frame,) = transfer(ends.reader, [request], ends.server, 1)
    assert isinstance(frame, ReceivedFrame)
    assert frame.tag == find_remote_request_tag(ends.uri) != ends.uri.want_data
    frames = [ends.announcement(region), ends.remote_body((0, 10), (64, 0), (4096, 100))]
    (body,) = transfer(ends.server, frames, ends.reader, 1)
    assert isinstance(body, ReceivedFrame)
    (freed,) = transfer(ends.reader, [], ends.server, 1)
    assert isinstance(freed, ReceivedFrame)
    assert freed.tag == ends.uri.free_data
    assert parse_offsets(bytes(freed.body), limit=9) == [0, 4096]


def buffers_of(frame: Any) -> list[bytes]:
    """Return the buffers of a remote body that a channel has received."""
    assert isinstance(frame, ReceivedFrame)
    assert isinstance(frame.body, RemoteBody)
    flat = struct.unpack(f"<{frame.body.nbytes // 8}Q", bytes(frame.body))
    region = frame.body.region
    return [
        region.buffer(offset, length, None).to_pybytes()
        for offset, length in zip(flat[2::2], flat[3::2], strict=True)
    ]


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 4096), (4096, 4096)],
        [(8192, 8), (8256, 100), (0, 0), (12_288, 1)],
        [(4 << 20, 0), (1 << 20, 24), (3 << 20, 24), (5, 3)],
        [(2 << 20, 16), (2 << 20, 16), (64, 16)],
        [],
        [(0, 4 << 20)],
    ],
)
def test_buffers_arrive_from_any_offset(
    ends: Ends, region: MappedRegion, spans: list[tuple[int, int]]
) -> None:
    whole = region.buffer(0, region.size, None).to_pybytes()
    frames = [ends.announcement(region), ends.remote_body(*spans)]
    (frame,) = transfer(ends.server, frames, ends.reader, 1)
    assert buffers_of(frame) == [whole[at : at + n] if n else b"" for at, n in spans]


@pytest.mark.parametrize(
    ("spans", "total", "why"),
    [
        ([(4 << 20, 1)], None, "outside the region of 4194304 bytes"),
        ([(0, (4 << 20) + 1)], None, "outside the region"),
        ([((1 << 64) - 8, 16)], 16, "outside the region"),
        ([(0, 100)], 99, "declares 99 bytes; its buffers have 100"),
        ([(0, 100), (50, 100)], None, "overlap"),
    ],
)
def test_invalid_offsets_are_refused(
    ends: Ends, region: MappedRegion, spans: Any, total: int | None, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        transfer(
            ends.server,
            [ends.announcement(region), ends.remote_body(*spans, total=total)],
            ends.reader,
            1,
        )


def test_a_body_without_a_region_is_refused(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match="before any region"):
        transfer(ends.server, [ends.remote_body((0, 8))], ends.reader, 1)


@pytest.mark.parametrize("payload", [b"", b"x" * 16, b"x" * 5000, b"\xff" * 40, bytes(16) + b"?"])
def test_a_malformed_region_is_refused(ends: Ends, payload: bytes) -> None:
    frame = TaggedFrame(ends.uri.require_want_data(), len(payload), (payload,))
    with pytest.raises(ProtocolError):
        transfer(ends.server, [frame], ends.reader, 1)


@pytest.mark.parametrize("ends", [Limits(body_bytes=1 << 20)], indirect=True)
def test_too_large_a_body_is_not_read(ends: Ends, region: MappedRegion) -> None:
    with pytest.raises(LimitError, match="the limit is 1048576"):
        transfer(
            ends.server, [ends.announcement(region), ends.remote_body((0, 2 << 20))], ends.reader, 1
        )


class OnDevice:
    """An array that describes its own memory."""

    def __init__(self, values: Any, strides: Any = None) -> None:
        self._values = values
        address, count = values.buffer_info()
        self.__cuda_array_interface__ = {
            "shape": (2, count // 2),
            "typestr": "<i4",
            "data": (address, True),
            "strides": strides,
            "version": 3,
        }


def test_arrays_that_describe_their_memory_are_sent(ends: Ends) -> None:
    values = array.array("i", range(1000))
    part = OnDevice(values)
    tag = pack_body_tag(1, BodyType.PACKED)
    frames = [TaggedFrame(tag, 4000, (part,)), TaggedFrame(tag + 1, 8000, (part, part))]
    one, two = transfer(ends.server, frames, ends.reader, 2)
    assert bytes(one.body) == values.tobytes()
    assert bytes(two.body) == 2 * values.tobytes()
    with pytest.raises(UsageError, match="contiguous"):
        get_address(OnDevice(values, strides=(8, 16)))


# Files that change and peers that die.


@pytest.mark.parametrize("body", ["remote", "packed"])
@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_a_file_that_changes_is_an_error_or_arrives_unchanged(
    tmp_path: Path, how: str, body: str
) -> None:
    path = tmp_path / "d.arrow"
    table = numbers_file(path)
    other = pa.table({"x": range(1000)})
    with (
        splitarrow.serve({"d": path, "other": other}, listen=[ADDRESS]) as server,
        splitarrow.open(server.uri("d") + f"&body={body}") as stream,
    ):
        batches = [next(stream), next(stream)]
        if how == "truncated":
            os.truncate(path, 1000)
        else:
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
        with suppress(SplitArrowError):
            batches += stream
        got = pa.Table.from_batches(batches)
        assert got == table.slice(0, got.num_rows)
        with splitarrow.open(server.uri("other")) as again:
            assert again.read_all() == other


def test_a_revoked_region_can_still_be_read_remotely(tmp_path: Path, ends: Ends) -> None:
    path = tmp_path / "d"
    path.write_bytes(b"a" * (1 << 20))
    file = SourceFile(path, refuse_writers=False)
    mapped = MappedRegion(os.dup(file.fileno()), file.size)
    held = mapped.buffer(0, file.size, None)
    frames = [ends.announcement(mapped), ends.remote_body((0, 1 << 20))]
    mapped.revoke(server_gone=False)  # as a file guard does before the file changes
    path.write_bytes(b"b")
    (frame,) = transfer(ends.server, frames, ends.reader, 1)
    assert buffers_of(frame) == [b"a" * (1 << 20)]
    del held
    file.close()


def test_a_file_that_cannot_be_mapped_is_read(tmp_path: Path, ends: Ends) -> None:
    path = tmp_path / "d"
    path.write_bytes(bytes(range(256)) * 4096)
    file = SourceFile(path)
    part = FileSpan(file, 100, 1 << 19)
    (frame,) = transfer(
        ends.server, [TaggedFrame(pack_body_tag(5), part.nbytes, (part,))], ends.reader, 1
    )
    assert bytes(frame.body) == path.read_bytes()[100 : 100 + (1 << 19)]
    file.close()


def test_a_file_that_has_changed_is_not_sent(tmp_path: Path, ends: Ends) -> None:
    path = tmp_path / "d"
    path.write_bytes(bytes(1 << 20))
    file = SourceFile(path)
    os.utime(path, ns=(0, 0))
    ends.server.queue([TaggedFrame(pack_body_tag(5), 1 << 20, (FileSpan(file, 0, 1 << 20),))])
    with pytest.raises(DatasetError, match="changed while it was read"):
        ends.server.send_some()
    file.close()


SERVER = """
import sys, splitarrow
with splitarrow.serve({"d": sys.argv[1]}, listen=["ucx://127.0.0.1:0"]) as server:
    print(server.uri("d"), flush=True)
    sys.stdin.read()
"""
READER = """
import sys, splitarrow
stream = splitarrow.open(sys.argv[1])
next(stream)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_reader_notices_a_dead_server(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow")
    with program(SERVER, str(tmp_path / "d.arrow")) as server:
        assert server.stdout is not None
        uri = server.stdout.readline().strip() + "&body=remote"
        with splitarrow.open(uri, stall_timeout=20) as stream:
            batches = [next(stream)]
            server.send_signal(signal.SIGKILL)
            died = time.monotonic()
            with pytest.raises(TransportError):
                batches += stream
            assert time.monotonic() - died < 2
        got = pa.Table.from_batches(batches)
        assert got == table.slice(0, got.num_rows)


def test_the_leases_of_a_dead_reader_end(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow")
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        with program(READER, server.uri("d") + "&body=remote") as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "open\n"
            assert server.stats()["leases"] > 0
            reader.send_signal(signal.SIGKILL)
            wait_until(lambda: server.stats()["leases"] == 0, seconds=2)
        with splitarrow.open(server.uri("d")) as stream:
            assert stream.read_all() == table


def test_readers_that_leave_early_leave_no_leases(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 16)
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        for _ in range(20):
            with splitarrow.open(server.uri("d") + "&body=remote") as stream:
                next(stream)
        wait_until(lambda: server.stats()["leases"] == 0)
        with splitarrow.open(server.uri("d")) as stream:
            assert stream.read_all() == table


def test_announcements_have_the_documented_layout(ends: Ends, region: MappedRegion) -> None:
    """See docs/wire.md: address, size, packed key."""
    part = ends.server.announce(region)
    assert isinstance(part, RegionAnnouncement)
    address, size = struct.unpack_from("<QQ", part.payload)
    assert (address, size) == (region.address, region.size)
    assert ends.server.announce(region).payload == part.payload  # the region is registered once
