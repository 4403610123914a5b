"""Bodies of type 1 over `ucx`: read by the client from the server's memory, then freed."""

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
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
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
from splitarrow.protocol.bodies import parse_offsets
from splitarrow.protocol.frames import Handover, PlacedBody, Tagged, TaggedReceived
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.tags import BodyType, body_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.server.shared import lending
from splitarrow.transport.regions import FileRegion, RegionFile
from splitarrow.transport.shm.mapping import MappedRegion
from splitarrow.transport.ucx import UcxTransport
from splitarrow.transport.ucx.sending import place

from .test_ucx import ADDRESS, both, both_ends, program, until

TAG = body_tag(7, BodyType.OFFSETS)


@pytest.fixture
def lends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lend even the smallest bodies."""
    monkeypatch.setattr(lending.ByAddress, "least", 0)


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
    """Write a file of batches of 1 MiB, the values of each its own."""
    schema = pa.schema({"x": pa.int64()})
    written: list[pa.RecordBatch] = []
    with pa.ipc.new_file(str(path), schema) as writer:
        for number in range(batches):
            column = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
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
@pytest.mark.usefixtures("lends_all")
def test_what_is_read_equals_what_is_served(kind: str, tmp_path: Path) -> None:
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
        until(lambda: server.stats()["leases"] == 0)
        assert server.stats()["bad_frees"] == 0


@pytest.mark.usefixtures("lends_all")
async def test_async(tmp_path: Path) -> None:
    table = some_table()
    source = source_of("file", table, tmp_path)
    with splitarrow.serve({"d": source}, listen=[ADDRESS]) as server:
        async with splitarrow.aio.open(server.uri("d")) as stream:
            assert await stream.read_all() == table
        assert server.stats()["bytes_lent"] > 1 << 20


def test_small_bodies_are_sent() -> None:
    table = pa.table({"x": range(100)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS]) as server:
        with splitarrow.open(server.uri("d")) as stream:
            assert stream.read_all() == table
        assert server.stats()["bytes_lent"] == 0


def test_what_is_read_is_freed_while_its_batches_live(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 8)
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        with splitarrow.open(server.uri("d")) as stream:
            batches = list(stream)
        assert server.stats()["bytes_lent"] >= table.nbytes
        until(lambda: server.stats()["leases"] == 0)
        assert pa.Table.from_batches(batches) == table


def test_a_reader_may_hold_little(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 16)
    source = {"d": tmp_path / "d.arrow"}
    with (
        splitarrow.serve(source, listen=[ADDRESS], max_leased=3 << 20) as server,
        splitarrow.open(server.uri("d")) as stream,
    ):
        assert stream.read_all() == table


def test_a_uri_may_ask_for_packed_bodies(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 4)
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        with splitarrow.open(server.uri("d") + "&body=packed") as stream:
            next(stream)
            with open("/proc/self/maps") as maps:  # sent from where it lies, in this process
                assert str(tmp_path / "d.arrow") in maps.read()
            assert stream.read_all() == table.slice(1 << 17)
        assert server.stats()["bytes_lent"] == 0


def test_a_listener_may_send_only() -> None:
    table = pa.table({"x": range(100_000)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS + "?body=packed"]) as server:
        uri = server.uri("d")
        assert "remote_handle" not in uri
        with splitarrow.open(uri) as stream:
            assert stream.read_all() == table
        with pytest.raises(UriError, match="body=remote needs a remote_handle"):
            splitarrow.open(uri.replace("body=packed", "body=remote"))


@pytest.mark.parametrize("uri", ["ucx://h:1?want_data=1&body=other", "ucx://h:1?body="])
def test_body_is_packed_or_remote(uri: str) -> None:
    with pytest.raises(UriError, match="'packed' or 'remote'"):
        DataUri.parse(uri)


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
                "reads remote memory; there are tcp",
            ),
        ):
            with program(READ, uri, UCX_TLS="tcp") as reader:
                assert reader.communicate(timeout=30)[0].startswith(expected)
        assert server.stats()["bytes_lent"] == 0


def test_a_server_with_other_settings_is_reached() -> None:
    """Its lanes are fewer than those that the client would choose."""
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
        with pytest.raises(ConnectError, match=r"by ucx \(.*posix/memory.*\), and rc is required"):
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


def test_busy_polling() -> None:
    table = pa.table({"x": range(100_000)})
    with splitarrow.serve({"d": table}, listen=[ADDRESS + "?busy_poll=200"]) as server:
        uri = server.uri("d")
        assert "busy_poll=200" in uri
        with splitarrow.open(uri) as stream:
            assert stream.read_all() == table
        with pytest.raises(UriError, match="busy_poll='x'"):
            splitarrow.open(uri.replace("busy_poll=200", "busy_poll=x"))


# One connection, one side of it by hand.


class Ends:
    """A reader that asks for bodies of type 1, and a server that does what a test says."""

    def __init__(self, limits: Limits) -> None:
        uri = DataUri.parse(ADDRESS + "?want_data=0x10000000001&free_data=0x10000000002")
        listener = UcxTransport(lambda file: None).listen(uri, Limits())
        self.uri = listener.uri
        asked = listener.uri.replace(body="remote")
        self.reader, self.server = both_ends(listener, asked, limits)

    def hand_over(self, region: MappedRegion) -> Tagged:
        part = self.server.hand_over(region)
        return Tagged(self.uri.require_want_data(), part.nbytes, (part,))

    def offers(self, *spans: tuple[int, int], total: int | None = None) -> Tagged:
        flat = [number for span in spans for number in span]
        total = sum(flat[1::2]) if total is None else total
        payload = struct.pack(f"<{2 + len(flat)}Q", total, len(spans), *flat)
        return Tagged(TAG, len(payload), (payload,))


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(getattr(request, "param", Limits()))
    yield made
    made.reader.abort()
    made.server.abort()


@pytest.fixture
def region(tmp_path: Path) -> MappedRegion:
    """4 MiB, in which each page begins with its number."""
    path = tmp_path / "region"
    pages = [number.to_bytes(8, "little") * (mmap.PAGESIZE // 8) for number in range(1024)]
    path.write_bytes(b"".join(pages))
    return MappedRegion(os.open(path, os.O_RDONLY), 4 << 20)


def test_requests_and_frees_have_their_tags(ends: Ends, region: MappedRegion) -> None:
    request = Tagged(ends.uri.require_want_data(), 3, (b"abc",))
    (frame,) = both(ends.reader, [request], ends.server, 1)
    assert isinstance(frame, TaggedReceived)
    assert frame.tag == ends.uri.remote_tag != ends.uri.want_data
    frames = [ends.hand_over(region), ends.offers((0, 10), (64, 0), (4096, 100))]
    (body,) = both(ends.server, frames, ends.reader, 1)
    assert isinstance(body, TaggedReceived)
    (freed,) = both(ends.reader, [], ends.server, 1)
    assert isinstance(freed, TaggedReceived)
    assert freed.tag == ends.uri.free_data
    assert parse_offsets(bytes(freed.body), limit=9) == [0, 4096]


def received(frame: Any) -> list[bytes]:
    """The buffers of a body of type 1, wherever the channel has put them."""
    assert isinstance(frame, TaggedReceived)
    assert isinstance(frame.body, PlacedBody)
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
def test_buffers_arrive_wherever_they_lie(
    ends: Ends, region: MappedRegion, spans: list[tuple[int, int]]
) -> None:
    whole = region.buffer(0, region.size, None).to_pybytes()
    frames = [ends.hand_over(region), ends.offers(*spans)]
    (frame,) = both(ends.server, frames, ends.reader, 1)
    assert received(frame) == [whole[at : at + n] if n else b"" for at, n in spans]


@pytest.mark.parametrize(
    ("spans", "total", "why"),
    [
        ([(4 << 20, 1)], None, "outside the region of 4194304 bytes"),
        ([(0, (4 << 20) + 1)], None, "outside the region"),
        ([((1 << 64) - 8, 16)], 16, "outside the region"),
        ([(0, 100)], 99, "not the sum"),
        ([(0, 100), (50, 100)], None, "overlap"),
    ],
)
def test_a_hostile_server_is_refused(
    ends: Ends, region: MappedRegion, spans: Any, total: int | None, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        both(
            ends.server, [ends.hand_over(region), ends.offers(*spans, total=total)], ends.reader, 1
        )


def test_a_body_without_a_region_is_refused(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match="before any region"):
        both(ends.server, [ends.offers((0, 8))], ends.reader, 1)


@pytest.mark.parametrize("payload", [b"", b"x" * 16, b"x" * 5000, b"\xff" * 40, bytes(16) + b"?"])
def test_a_malformed_region_is_refused(ends: Ends, payload: bytes) -> None:
    frame = Tagged(ends.uri.require_want_data(), len(payload), (payload,))
    with pytest.raises(ProtocolError):
        both(ends.server, [frame], ends.reader, 1)


@pytest.mark.parametrize("ends", [Limits(body_bytes=1 << 20)], indirect=True)
def test_too_large_a_body_is_not_read(ends: Ends, region: MappedRegion) -> None:
    with pytest.raises(LimitError, match="the limit is 1048576"):
        both(ends.server, [ends.hand_over(region), ends.offers((0, 2 << 20))], ends.reader, 1)


class OnDevice:
    """An array that says itself where it lies."""

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


def test_arrays_say_where_they_lie(ends: Ends) -> None:
    values = array.array("i", range(1000))
    part = OnDevice(values)
    tag = body_tag(1, BodyType.PACKED)
    frames = [Tagged(tag, 4000, (part,)), Tagged(tag + 1, 8000, (part, part))]
    one, two = both(ends.server, frames, ends.reader, 2)
    assert bytes(one.body) == values.tobytes()
    assert bytes(two.body) == 2 * values.tobytes()
    with pytest.raises(UsageError, match="contiguous"):
        place(OnDevice(values, strides=(8, 16)))


# Files that change, and peers that die.


@pytest.mark.parametrize("body", ["remote", "packed"])
@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_a_file_that_changes_is_an_error_or_right(tmp_path: Path, how: str, body: str) -> None:
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


def test_a_region_is_read_after_its_file_has_gone(tmp_path: Path, ends: Ends) -> None:
    path = tmp_path / "d"
    path.write_bytes(b"a" * (1 << 20))
    file = RegionFile(path)
    mapped = MappedRegion(os.dup(file.fileno()), file.size)
    held = mapped.buffer(0, file.size, None)
    frames = [ends.hand_over(mapped), ends.offers((0, 1 << 20))]
    mapped.detach(server_gone=False)  # as a guard does before the file changes
    path.write_bytes(b"b")
    (frame,) = both(ends.server, frames, ends.reader, 1)
    assert received(frame) == [b"a" * (1 << 20)]
    del held
    file.close()


def test_a_file_that_cannot_be_mapped_is_read(tmp_path: Path, ends: Ends) -> None:
    path = tmp_path / "d"
    path.write_bytes(bytes(range(256)) * 4096)
    file = RegionFile(path)
    part = FileRegion(file, 100, 1 << 19)
    (frame,) = both(ends.server, [Tagged(body_tag(5), part.nbytes, (part,))], ends.reader, 1)
    assert bytes(frame.body) == path.read_bytes()[100 : 100 + (1 << 19)]
    file.close()


def test_a_file_that_has_changed_is_not_sent(tmp_path: Path, ends: Ends) -> None:
    path = tmp_path / "d"
    path.write_bytes(bytes(1 << 20))
    file = RegionFile(path)
    os.utime(path, ns=(0, 0))
    ends.server.queue([Tagged(body_tag(5), 1 << 20, (FileRegion(file, 0, 1 << 20),))])
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


def test_a_dead_server_is_noticed(tmp_path: Path) -> None:
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


def test_a_dead_reader_gives_its_leases_back(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow")
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        with program(READER, server.uri("d") + "&body=remote") as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "open\n"
            assert server.stats()["leases"] > 0
            reader.send_signal(signal.SIGKILL)
            until(lambda: server.stats()["leases"] == 0, 2)
        with splitarrow.open(server.uri("d")) as stream:
            assert stream.read_all() == table


def test_readers_that_leave_in_the_middle_leave_nothing(tmp_path: Path) -> None:
    table = numbers_file(tmp_path / "d.arrow", 16)
    with splitarrow.serve({"d": tmp_path / "d.arrow"}, listen=[ADDRESS]) as server:
        for _ in range(20):
            with splitarrow.open(server.uri("d") + "&body=remote") as stream:
                next(stream)
        until(lambda: server.stats()["leases"] == 0)
        with splitarrow.open(server.uri("d")) as stream:
            assert stream.read_all() == table


def test_handovers_carry_what_a_reader_needs(ends: Ends, region: MappedRegion) -> None:
    """As docs/wire.md lays it out: address, size, packed key."""
    part = ends.server.hand_over(region)
    assert isinstance(part, Handover)
    address, size = struct.unpack_from("<QQ", part.payload)
    assert (address, size) == (region.address, region.size)
    assert ends.server.hand_over(region).payload == part.payload  # registered once
