"""Servers that break the rules of shared memory: each is refused, and nothing crashes or leaks."""

from __future__ import annotations

import gc
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import (
    ConnectionLostError,
    DatasetError,
    LimitError,
    ProtocolError,
    SplitArrowError,
    UriError,
)
from splitarrow.formats.arrow.message import batch_facts
from splitarrow.transport.shm.mapping import MappedRegion

from ..protocol.crafting import plain_batch
from ..protocol.streams import cut, ipc_stream
from .parts import (
    numbers,
    open_descriptors,
    places_of,
    read_table,
    wait_until,
    write_file,
)
from .peers import (
    FUTURE_WRITE,
    GROW,
    SEAL,
    SEALED,
    SHRINK,
    WRITE,
    Carried,
    Sample,
    ScriptedServer,
    Span,
    Step,
    announced,
    end,
    listed,
    memory,
    message,
    placed,
    tagged,
)

SIZE = 4096
TOP = 1 << 64


@pytest.fixture(scope="module", autouse=True)
def process_that_has_watched(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first file that is watched takes a descriptor for the process, once."""
    folder = tmp_path_factory.mktemp("watched")
    path = write_file(folder / "data.arrow", numbers(1))
    with splitarrow.serve({"data": path}, listen=[f"shm://{folder}/data.sock"]) as server:
        assert read_table(server.uri("data")).num_rows == 1000


@pytest.fixture(autouse=True)
def no_descriptor_is_lost() -> Iterator[None]:
    """After each test as many descriptors are open as before."""
    before = open_descriptors()
    yield
    if open_descriptors() > before:
        gc.collect()
        wait_until(lambda: open_descriptors() <= before, 5)


def two_columns() -> Sample:
    """Return a sample of four buffers, of which two are filled: 64 bytes each."""
    values = pa.array(range(8), pa.int64())
    return Sample.of(pa.record_batch([values, values], names=["a", "b"]))


GOOD: list[Span] = [(0, 0), (0, 64), (0, 0), (64, 64)]


def stream(sample: Sample, region: Step, body: bytes) -> list[Step]:
    """Return the script of a server that sends one batch, and then the end."""
    return [
        message(0, sample.schema),
        region,
        message(1, sample.metadata),
        placed(1, body),
        end(2),
    ]


def read(folder: Path | None, steps: Sequence[Step], **options: object) -> list[pa.RecordBatch]:
    """Read what a server sends that follows a script."""
    with (
        ScriptedServer(folder, steps, **options) as server,  # pyright: ignore[reportArgumentType]
        splitarrow.open(server.uri, validate="full", stall_timeout=10) as stream,
    ):
        return list(stream)


def region_of(sample: Sample) -> Carried:
    return Carried(announced(SIZE), (memory(sample.body.ljust(SIZE, b"\0")),))


def test_the_script_itself_is_good(tmp_path: Path) -> None:
    sample = two_columns()
    assert read(tmp_path, stream(sample, region_of(sample), listed(GOOD))) == [sample.batch]


BODIES: dict[str, tuple[bytes, str]] = {
    "behind the region": (listed([*GOOD[:3], (SIZE, 64)]), "outside the region"),
    "over its end": (listed([*GOOD[:3], (SIZE - 56, 64)]), "outside the region"),
    "far behind it": (listed([*GOOD[:3], (1 << 40, 64)]), "outside the region"),
    "offset overflows": (listed([*GOOD[:3], (TOP - 8, 64)]), "outside the region"),
    "sum is 2^64": (listed([*GOOD[:3], (TOP - 64, 64)]), "outside the region"),
    "largest offset": (listed([*GOOD[:3], (TOP - 1, 64)]), "outside the region"),
    "negative offset": (listed([*GOOD[:3], (TOP - 64 + 32, 64)]), "outside the region"),
    "largest length": (listed([*GOOD[:3], (0, TOP - 1)]), "outside the region"),
    "length overflows": (listed([*GOOD[:3], (64, TOP - 64)]), "outside the region"),
    "empty but outside": (listed([(TOP - 1, 0), *GOOD[1:]]), "outside the region"),
    "overlap": (listed([*GOOD[:3], (8, 64)]), "overlap"),
    "one inside another": (listed([(0, 0), (0, 128), (0, 0), (32, 8)]), "overlap"),
    "total too large": (listed(GOOD, total=129), "sum of its lengths"),
    "total too small": (listed(GOOD, total=0), "sum of its lengths"),
    "total overflows": (listed(GOOD, total=TOP - 1), "sum of its lengths"),
    "one buffer less": (listed(GOOD[:3]), "lists 3 buffers where the metadata lists 4"),
    "one buffer more": (listed([*GOOD, (128, 64)]), "lists 5 buffers"),
    "count too large": (listed(GOOD, count=5), "lists 5 buffers"),
    "count is 2^64 - 1": (listed(GOOD, count=TOP - 1), "buffers where"),
    "count is 2^60": (listed(GOOD, count=1 << 60), "buffers where"),
    "a pair is cut": (listed(GOOD)[:-1], "bytes"),
    "a pair is missing": (listed(GOOD)[:-16], "bytes"),
    "a byte too many": (listed(GOOD) + b"\0", "bytes"),
    "no pairs": (listed(GOOD)[:16], "bytes"),
    "cut header": (listed(GOOD)[:15], "only 15 bytes"),
    "nothing": (b"", "only 0 bytes"),
    "shorter than the metadata": (listed([*GOOD[:3], (64, 56)]), "buffer 3 56 bytes"),
    "longer than the metadata": (listed([*GOOD[:3], (64, 72)]), "buffer 3 72 bytes"),
    "a buffer left out": (listed([*GOOD[:3], (0, 0)]), "buffer 3 0 bytes"),
    "a buffer of nothing": (listed([(256, 8), *GOOD[1:]]), "buffer 0 8 bytes"),
    "swapped": (listed([GOOD[1], GOOD[0], *GOOD[2:]]), "buffer 0 64 bytes"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bad_offsets_are_refused(tmp_path: Path, name: str) -> None:
    body, why = BODIES[name]
    sample = two_columns()
    with pytest.raises(ProtocolError, match=why) as caught:
        read(tmp_path, stream(sample, region_of(sample), body))
    assert (caught.value.stream, caught.value.sequence) == ("data", 1)


def test_good_batches_come_before_the_error(tmp_path: Path) -> None:
    sample = two_columns()
    steps = stream(sample, region_of(sample), listed(GOOD))[:-1]
    steps += [message(2, sample.metadata), placed(2, listed(GOOD, total=1)), end(3)]
    with ScriptedServer(tmp_path, steps) as server, splitarrow.open(server.uri) as reading:
        assert next(reading) == sample.batch
        with pytest.raises(ProtocolError, match="sum"):
            next(reading)
        with pytest.raises(ProtocolError, match="sum"):
            next(reading)


def file_of(folder: Path, data: bytes) -> int:
    path = folder / "region"
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


def one_end_of_a_pipe(folder: Path) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def socket_of_nobody(folder: Path) -> int:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()


DESCRIPTORS: dict[str, tuple[Callable[[Path], int], str]] = {
    "pipe": (one_end_of_a_pipe, "no file and no memory"),
    "socket": (socket_of_nobody, "no file and no memory"),
    "directory": (lambda folder: os.open(folder, os.O_RDONLY), "no file and no memory"),
    "device": (lambda _: os.open("/dev/zero", os.O_RDONLY), "no file and no memory"),
    "path only": (lambda folder: os.open(folder, os.O_PATH), "no file and no memory"),
    "file for writing only": (
        lambda folder: os.open(folder / "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        "has 0 bytes where 4096 are declared",
    ),
    "file that is too short": (
        lambda folder: file_of(folder, bytes(SIZE - 1)),
        "has 4095 bytes where 4096 are declared",
    ),
    "empty file": (lambda folder: file_of(folder, b""), "has 0 bytes"),
    "memory that is too short": (lambda _: memory(bytes(SIZE - 1)), "has 4095 bytes"),
    "unsealed": (lambda _: memory(bytes(SIZE), 0), "not sealed"),
    "may be written to": (lambda _: memory(bytes(SIZE), SHRINK | GROW), "not sealed"),
    "may be written to, for ever": (lambda _: memory(bytes(SIZE), SEAL | SHRINK | GROW), "sealed"),
    "may shrink": (lambda _: memory(bytes(SIZE), GROW | WRITE), "not sealed"),
    "may grow": (lambda _: memory(bytes(SIZE), SHRINK | WRITE), "not sealed"),
    "may shrink, future writes": (lambda _: memory(bytes(SIZE), GROW | FUTURE_WRITE), "sealed"),
}


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_bad_regions_are_refused(tmp_path: Path, name: str) -> None:
    make, why = DESCRIPTORS[name]
    sample = two_columns()
    region = Carried(announced(SIZE), (make(tmp_path),))
    with pytest.raises(ProtocolError, match=why):
        read(tmp_path, stream(sample, region, listed(GOOD)))


@pytest.mark.parametrize("seals", [SEALED, SHRINK | GROW | WRITE, SHRINK | GROW | FUTURE_WRITE])
def test_seals_that_are_enough(tmp_path: Path, seals: int) -> None:
    sample = two_columns()
    region = Carried(announced(128), (memory(sample.body, seals),))
    assert read(tmp_path, stream(sample, region, listed(GOOD))) == [sample.batch]


@pytest.mark.parametrize("size", [SIZE + 1, 1 << 40, 1 << 63, TOP - 1])
def test_a_region_is_not_as_large_as_declared(tmp_path: Path, size: int) -> None:
    sample = two_columns()
    region = Carried(announced(size), (memory(sample.body.ljust(SIZE, b"\0")),))
    with pytest.raises(ProtocolError, match=f"{size} are declared"):
        read(tmp_path, stream(sample, region, listed(GOOD)))


def test_a_sparse_file_that_cannot_be_mapped(tmp_path: Path) -> None:
    """A file may be larger than the address space; the error says what was tried."""
    descriptor = os.open(tmp_path / "hole", os.O_RDWR | os.O_CREAT)
    size = 1 << 43
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        pytest.skip("this file system has no files that large")
    sample = two_columns()
    body = listed([*GOOD[:3], (size - 64, 64)])
    try:
        (batch,) = read(tmp_path, stream(sample, Carried(announced(size), (descriptor,)), body))
    except LimitError as error:
        assert f"cannot map a region of {size} bytes" in str(error)  # noqa: PT017
    else:
        assert batch.column("b").to_pylist() == [0] * 8


def test_a_region_is_only_as_large_as_declared(tmp_path: Path) -> None:
    sample = two_columns()
    region = Carried(announced(127), (memory(sample.body),))
    with pytest.raises(ProtocolError, match="outside the region of 127 bytes"):
        read(tmp_path, stream(sample, region, listed(GOOD)))


def test_offsets_before_any_region(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="before any region"):
        read(tmp_path, stream(sample, b"", listed(GOOD)))


def test_offsets_into_an_empty_region(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="outside the region of 0 bytes"):
        read(tmp_path, stream(sample, Carried(announced(0), (memory(b""),)), listed(GOOD)))


def test_another_region_than_the_address_names(tmp_path: Path) -> None:
    sample = two_columns()
    region = Carried(announced(128, bytes(16)), (memory(sample.body),))
    with pytest.raises(SplitArrowError, match="remote_handle"):
        read(tmp_path, stream(sample, region, listed(GOOD)))


def test_an_address_without_a_region(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="no remote_handle"):
        read(tmp_path, stream(sample, region_of(sample), listed(GOOD)), handle=None)


@pytest.mark.parametrize("size", [1, 15, 17, 64])
def test_an_address_whose_handle_is_no_region(tmp_path: Path, size: int) -> None:
    with (
        ScriptedServer(tmp_path, [], handle=bytes(size)) as server,
        pytest.raises(UriError, match="16 bytes"),
    ):
        splitarrow.open(server.uri)


def test_no_descriptor_with_the_announcement(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="no descriptor"):
        read(tmp_path, stream(sample, announced(128), listed(GOOD)))


@pytest.mark.parametrize("size", [0, 1, 16, 23, 25])
def test_malformed_announcements(tmp_path: Path, size: int) -> None:
    sample = two_columns()
    payload = announced(128)[24:].ljust(25, b"\0")[:size]
    region = Carried(tagged((1 << 40) + 1, payload), (memory(sample.body),))
    with pytest.raises(ProtocolError, match=f"announced in {size} bytes"):
        read(tmp_path, stream(sample, region, listed(GOOD)))


@pytest.mark.parametrize("count", [3, 8, 100])
def test_too_many_descriptors_at_once(tmp_path: Path, count: int) -> None:
    sample = two_columns()
    regions = tuple(memory(sample.body) for _ in range(count))
    with pytest.raises(LimitError, match="more descriptors"):
        read(tmp_path, stream(sample, Carried(announced(128), regions), listed(GOOD)))


def test_descriptors_that_nobody_asked_for(tmp_path: Path) -> None:
    """They come with bytes that announce no region, and pile up nowhere."""
    sample = two_columns()
    spare = memory(sample.body)
    steps = stream(sample, region_of(sample), listed(GOOD))
    first = steps[0]
    assert isinstance(first, bytes)
    flood: list[Step] = [Carried(bytes([byte]), (spare, spare)) for byte in first[:40]]
    with pytest.raises(LimitError, match="more descriptors"):
        read(tmp_path, [*flood, first[40:], *steps[1:]])


def test_descriptors_with_the_wrong_bytes(tmp_path: Path) -> None:
    """A descriptor that came early is taken for the first region, and is checked as such."""
    sample = two_columns()
    steps = stream(sample, region_of(sample), listed(GOOD))
    assert isinstance(steps[0], bytes)
    steps[0] = Carried(steps[0], (memory(bytes(SIZE), 0),))
    with pytest.raises(ProtocolError, match="not sealed"):
        read(tmp_path, steps)


def test_regions_one_after_the_other(tmp_path: Path) -> None:
    """Each replaces the one before; batches on those stay valid."""
    sample = two_columns()
    steps: list[Step] = [message(0, sample.schema)]
    for k in range(1, 41):
        body = (k.to_bytes(8, "little") * 16).rjust(64 * k + 128, b"\0")
        spans = [(0, 0), (64 * k, 64), (0, 0), (64 * k + 64, 64)]
        steps.append(Carried(announced(len(body)), (memory(body),)))
        steps += [message(k, sample.metadata), placed(k, listed(spans))]
    batches = read(tmp_path, [*steps, end(41)])
    assert [batch.column("b")[7].as_py() for batch in batches] == list(range(1, 41))


def test_regions_that_nobody_uses(tmp_path: Path) -> None:
    sample = two_columns()
    steps: list[Step] = [message(0, sample.schema)]
    steps += [region_of(sample) for _ in range(200)]
    steps += [message(1, sample.metadata), placed(1, listed(GOOD)), end(2)]
    try:
        assert read(tmp_path, steps) == [sample.batch]
    except LimitError as error:
        assert "more descriptors" in str(error)  # noqa: PT017


def test_a_file_that_shrinks_after_the_announcement(tmp_path: Path) -> None:
    sample = two_columns()
    descriptor = file_of(tmp_path, sample.body.ljust(SIZE, b"\0"))
    go_on = threading.Event()
    steps: list[Step] = [
        message(0, sample.schema),
        Carried(announced(SIZE), (descriptor,)),
        message(1, sample.metadata),
        placed(1, listed(GOOD)),
        lambda: go_on.wait(10),
        message(2, sample.metadata),
        placed(2, listed(GOOD)),
        end(3),
    ]
    with ScriptedServer(tmp_path, steps) as server, splitarrow.open(server.uri) as reading:
        assert next(reading) == sample.batch
        os.truncate(tmp_path / "region", 1)
        go_on.set()
        with pytest.raises(DatasetError, match="truncated"):
            next(reading)


def test_a_file_that_is_written_to_after_the_announcement(tmp_path: Path) -> None:
    sample = two_columns()
    descriptor = file_of(tmp_path, sample.body.ljust(SIZE, b"\0"))
    steps: list[Step] = [
        message(0, sample.schema),
        Carried(announced(SIZE), (descriptor,)),
        lambda: (tmp_path / "region").write_bytes(bytes(SIZE)),
        message(1, sample.metadata),
        placed(1, listed(GOOD)),
        end(2),
    ]
    with ScriptedServer(tmp_path, steps) as server:
        reading = splitarrow.open(server.uri)
        try:
            batches = list(reading)
        except (DatasetError, ProtocolError) as error:  # it is empty for a moment
            assert re.search("written to|truncated|has 0 bytes", str(error))  # noqa: PT017
        else:  # it was mapped after the change
            assert batches[0].column("a").to_pylist() == [0] * 8
        reading.close()


def test_a_second_descriptor_that_is_no_socket(tmp_path: Path) -> None:
    sample = two_columns()
    for index, watch in enumerate((memory(b"x"), os.open(tmp_path, os.O_RDONLY))):
        folder = tmp_path / str(index)
        folder.mkdir()
        region = Carried(announced(128), (memory(sample.body), watch))
        with pytest.raises(LimitError, match="cannot map"):
            read(folder, stream(sample, region, listed(GOOD)))


def test_a_watch_that_has_ended_already(tmp_path: Path) -> None:
    """The file may be changed at any moment: nothing of it is handed out."""
    sample = two_columns()
    region = Carried(announced(128), (file_of(tmp_path, sample.body), one_end_of_a_pipe(tmp_path)))
    with pytest.raises(ConnectionLostError, match="server is gone"):
        read(tmp_path, stream(sample, region, listed(GOOD)))


def test_an_ended_watch_is_noticed_before_anything_is_looked_at(tmp_path: Path) -> None:
    for _ in range(100):
        region = MappedRegion(file_of(tmp_path, bytes(64)), 64, one_end_of_a_pipe(tmp_path))
        with pytest.raises(ConnectionLostError, match="server is gone"):
            region.check()


def test_offsets_in_a_tcp_stream() -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError):
        read(None, stream(sample, b"", listed(GOOD)), handle=None)
    with pytest.raises(ProtocolError):
        read(None, stream(sample, announced(128), listed(GOOD)))


def test_packed_bodies_in_shared_memory_streams_are_fine(tmp_path: Path) -> None:
    sample = two_columns()
    steps = [message(0, sample.schema), message(1, sample.metadata), tagged(1, sample.body), end(2)]
    assert read(tmp_path, steps) == [sample.batch]


CRAFTED: dict[str, tuple[list[Span], int]] = {
    "buffer before the body": ([(0, 0), (-64, 64)], 64),
    "buffer behind the body": ([(0, 0), (32, 64)], 64),
    "buffer far behind the body": ([(0, 0), (1 << 40, 64)], 64),
    "buffer at the end of numbers": ([(0, 0), ((1 << 63) - 64, 64)], 64),
    "body without length": ([(0, 0), (0, 64)], 0),
    "body too short": ([(0, 0), (0, 64)], 8),
    "body of negative length": ([(0, 0), (0, 64)], -8),
    "body of the most negative length": ([(0, 0), (0, 64)], -(1 << 63)),
    "body of 2^63 - 1 bytes": ([(0, 0), (0, 64)], (1 << 63) - 1),
    "body of 32 TiB": ([(0, 0), (0, 64)], 1 << 45),
}


@pytest.mark.parametrize("at", [128, 129])
@pytest.mark.parametrize("name", CRAFTED)
def test_metadata_that_lies(tmp_path: Path, name: str, at: int) -> None:
    """The buffer is where the body says, or the stream is refused; at 129 it has to be copied."""
    buffers, body_length = CRAFTED[name]
    sample = Sample.of(numbers(1, 8)[0])._replace(metadata=plain_batch(8, buffers, body_length))
    data = bytes(at) + sample.body
    region = Carried(announced(len(data)), (memory(data),))
    try:
        batches = read(tmp_path, stream(sample, region, listed([(0, 0), (at, 64)])))
    except ProtocolError:
        return
    assert batches == [sample.batch]


# Benign servers of another make, which lay their buffers out in ways of their own.


def texts() -> Sample:
    values = range(100)
    columns = {
        "n": pa.array([None if v % 9 == 0 else v for v in values], pa.int64()),
        "t": pa.array([None if v % 5 == 0 else f"text {v}" for v in values], pa.string()),
        "l": pa.array([[v] * (v % 3) for v in values], pa.list_(pa.int16())),
    }
    return Sample.of(pa.record_batch(columns))


def scattered(sample: Sample, align: int, shift: int) -> tuple[bytes, list[Span]]:
    """Lay the buffers out back to front, each at a multiple of `align`, plus `shift`."""
    data = bytearray(b"\xff" * 64)
    spans: list[Span] = []
    for offset, length in reversed(sample.buffers):
        if not length:
            spans.append((0, 0))
            continue
        data += b"\xff" * (-len(data) % align + align + shift)
        spans.append((len(data), length))
        data += sample.body[offset : offset + length]
    return bytes(data) + b"\xff" * 64, spans[::-1]


@pytest.mark.parametrize("align", [8, 64, 4096])
def test_scattered_buffers_arrive_without_a_copy(tmp_path: Path, align: int) -> None:
    sample = texts()
    data, spans = scattered(sample, align, 0)
    region = Carried(announced(len(data)), (memory(data),))
    (batch,) = read(tmp_path, stream(sample, region, listed(spans)))
    assert batch == sample.batch
    (place,) = places_of([batch])
    assert "memfd:test" in place.name
    assert place.rights == "r--s"


@pytest.mark.parametrize(("align", "shift"), [(8, 1), (8, 4), (1, 0), (2, 1), (64, 63)])
def test_unaligned_buffers_arrive_equal(tmp_path: Path, align: int, shift: int) -> None:
    sample = texts()
    data, spans = scattered(sample, align, shift)
    region = Carried(announced(len(data)), (memory(data),))
    (batch,) = read(tmp_path, stream(sample, region, listed(spans)))
    assert batch == sample.batch


def test_one_buffer_may_serve_twice(tmp_path: Path) -> None:
    sample = two_columns()
    region = Carried(announced(SIZE), (memory(sample.body.ljust(SIZE, b"\0")),))
    spans = [(0, 0), (64, 64), (0, 0), (64, 64)]
    assert read(tmp_path, stream(sample, region, listed(spans))) == [sample.batch]


def test_scattered_dictionaries_arrive(tmp_path: Path) -> None:
    batch = pa.record_batch({"d": pa.array(["a", "bb", None, "a"]).dictionary_encode()})
    first, *rest = cut(ipc_stream([batch], batch.schema))
    steps: list[Step] = [message(0, bytes(first.metadata))]
    for number, each in enumerate(rest, 1):
        assert each.body is not None
        found = [(o, n) for o, n in batch_facts(each.metadata).buffers]
        whole = Sample(batch, b"", b"", b"".join(bytes(p) for p in each.body), found)
        data, spans = scattered(whole, 64, 0)
        steps.append(Carried(announced(len(data)), (memory(data),)))
        steps += [message(number, bytes(each.metadata)), placed(number, listed(spans))]
    (got,) = read(tmp_path, [*steps, end(1 + len(rest))])
    assert got == batch


def test_compressed_buffers_lie_in_the_region_compressed(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": pa.array([7] * 5000, pa.int64())})
    first, second = cut(ipc_stream([batch], batch.schema, compression="zstd"))
    assert second.body is not None
    body = b"".join(bytes(part) for part in second.body)
    spans = [(o, n) if n else (0, 0) for o, n in batch_facts(second.metadata).buffers]
    sample = Sample(batch, bytes(first.metadata), bytes(second.metadata), body, spans)
    region = Carried(announced(len(body)), (memory(body),))
    assert read(tmp_path, stream(sample, region, listed(spans))) == [batch]


def test_errors_name_no_secret(tmp_path: Path) -> None:
    sample = two_columns()
    with ScriptedServer(tmp_path, stream(sample, b"", listed(GOOD))) as server:
        with pytest.raises(SplitArrowError) as caught:
            splitarrow.open(server.uri).read_all()
        assert "AAECAwQF" not in str(caught.value)
