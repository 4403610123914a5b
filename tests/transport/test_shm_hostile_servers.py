"""Servers that break the protocol of shared memory are refused, and nothing crashes or leaks."""

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
from helpers.crafting import plain_batch
from helpers.files import write_file
from helpers.shm import find_mappings, make_number_batches, open_descriptors, read_table
from helpers.shm_peers import (
    FUTURE_WRITE,
    GROW,
    SEAL,
    SEALED,
    SHRINK,
    WRITE,
    Sample,
    ScriptedServer,
    Span,
    Step,
    WithDescriptors,
    announcement,
    end,
    message,
    remote_body,
    sealed_memory,
    span_list,
    tagged,
)
from helpers.streams import ipc_stream, split_messages
from helpers.waiting import wait_until
from splitarrow.errors import (
    ConnectionLostError,
    DatasetError,
    LimitError,
    ProtocolError,
    SplitArrowError,
    UriError,
)
from splitarrow.formats.arrow.message import read_batch_layout
from splitarrow.transport.memory.mapped_region import MappedRegion

SIZE = 4096
TOP = 1 << 64


@pytest.fixture(scope="module", autouse=True)
def process_that_has_watched(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Open the descriptor with which the process watches for revocations."""
    folder = tmp_path_factory.mktemp("watched")
    path = write_file(folder / "data.arrow", make_number_batches(1))
    with splitarrow.serve({"data": path}, listen=[f"shm://{folder}/data.sock"]) as server:
        assert read_table(server.uri("data")).num_rows == 1000


@pytest.fixture(autouse=True)
def no_descriptor_is_lost() -> Iterator[None]:
    """Check that a test leaves as many open descriptors as it found."""
    before = open_descriptors()
    yield
    if open_descriptors() > before:
        gc.collect()
        wait_until(lambda: open_descriptors() <= before, seconds=5)


def two_columns() -> Sample:
    """Return a sample with four buffers: two are empty, and two have 64 bytes."""
    values = pa.array(range(8), pa.int64())
    return Sample.of(pa.record_batch([values, values], names=["a", "b"]))


GOOD: list[Span] = [(0, 0), (0, 64), (0, 0), (64, 64)]


def stream(sample: Sample, region: Step, body: bytes) -> list[Step]:
    """Return the script of a server that sends one batch and the end of the stream."""
    return [
        message(0, sample.schema),
        region,
        message(1, sample.metadata),
        remote_body(1, body),
        end(2),
    ]


def read(folder: Path | None, steps: Sequence[Step], **options: object) -> list[pa.RecordBatch]:
    """Read the stream of a server that follows a script."""
    with (
        ScriptedServer(folder, steps, **options) as server,  # pyright: ignore[reportArgumentType]
        splitarrow.open(server.uri, validate="full", stall_timeout=10) as stream,
    ):
        return list(stream)


def region_of(sample: Sample) -> WithDescriptors:
    return WithDescriptors(announcement(SIZE), (sealed_memory(sample.body.ljust(SIZE, b"\0")),))


def test_the_unmodified_script_is_valid(tmp_path: Path) -> None:
    sample = two_columns()
    assert read(tmp_path, stream(sample, region_of(sample), span_list(GOOD))) == [sample.batch]


BODIES: dict[str, tuple[bytes, str]] = {
    "behind the region": (span_list([*GOOD[:3], (SIZE, 64)]), "outside the region"),
    "over its end": (span_list([*GOOD[:3], (SIZE - 56, 64)]), "outside the region"),
    "far behind it": (span_list([*GOOD[:3], (1 << 40, 64)]), "outside the region"),
    "offset overflows": (span_list([*GOOD[:3], (TOP - 8, 64)]), "outside the region"),
    "sum is 2^64": (span_list([*GOOD[:3], (TOP - 64, 64)]), "outside the region"),
    "largest offset": (span_list([*GOOD[:3], (TOP - 1, 64)]), "outside the region"),
    "negative offset": (span_list([*GOOD[:3], (TOP - 64 + 32, 64)]), "outside the region"),
    "largest length": (span_list([*GOOD[:3], (0, TOP - 1)]), "outside the region"),
    "length overflows": (span_list([*GOOD[:3], (64, TOP - 64)]), "outside the region"),
    "empty but outside": (span_list([(TOP - 1, 0), *GOOD[1:]]), "outside the region"),
    "overlap": (span_list([*GOOD[:3], (8, 64)]), "overlap"),
    "one inside another": (span_list([(0, 0), (0, 128), (0, 0), (32, 8)]), "overlap"),
    "total too large": (span_list(GOOD, total=129), "declares 129 bytes; its buffers have 128"),
    "total too small": (span_list(GOOD, total=0), "declares 0 bytes; its buffers have 128"),
    "total overflows": (span_list(GOOD, total=TOP - 1), "its buffers have 128"),
    "one buffer less": (span_list(GOOD[:3]), "lists 3 buffers; the metadata lists 4"),
    "one buffer more": (span_list([*GOOD, (128, 64)]), "lists 5 buffers"),
    "count too large": (span_list(GOOD, count=5), "lists 5 buffers"),
    "count is 2^64 - 1": (span_list(GOOD, count=TOP - 1), "buffers; "),
    "count is 2^60": (span_list(GOOD, count=1 << 60), "buffers; "),
    "a pair is cut": (span_list(GOOD)[:-1], "bytes"),
    "a pair is missing": (span_list(GOOD)[:-16], "bytes"),
    "a byte too many": (span_list(GOOD) + b"\0", "bytes"),
    "no pairs": (span_list(GOOD)[:16], "bytes"),
    "cut header": (span_list(GOOD)[:15], "it has 15 bytes, less than its header"),
    "nothing": (b"", "it has 0 bytes, less than its header"),
    "shorter than the metadata": (
        span_list([*GOOD[:3], (64, 56)]),
        "buffer 3 of a body of offsets has 56 bytes",
    ),
    "longer than the metadata": (
        span_list([*GOOD[:3], (64, 72)]),
        "buffer 3 of a body of offsets has 72 bytes",
    ),
    "a buffer left out": (
        span_list([*GOOD[:3], (0, 0)]),
        "buffer 3 of a body of offsets has 0 bytes",
    ),
    "a buffer of nothing": (
        span_list([(256, 8), *GOOD[1:]]),
        "buffer 0 of a body of offsets has 8 bytes",
    ),
    "swapped": (
        span_list([GOOD[1], GOOD[0], *GOOD[2:]]),
        "buffer 0 of a body of offsets has 64 bytes",
    ),
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
    steps = stream(sample, region_of(sample), span_list(GOOD))[:-1]
    steps += [message(2, sample.metadata), remote_body(2, span_list(GOOD, total=1)), end(3)]
    with ScriptedServer(tmp_path, steps) as server, splitarrow.open(server.uri) as reading:
        assert next(reading) == sample.batch
        with pytest.raises(ProtocolError, match="declares 1 bytes"):
            next(reading)
        with pytest.raises(ProtocolError, match="declares 1 bytes"):
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
    "pipe": (one_end_of_a_pipe, "neither a file nor memory"),
    "socket": (socket_of_nobody, "neither a file nor memory"),
    "directory": (lambda folder: os.open(folder, os.O_RDONLY), "neither a file nor memory"),
    "device": (lambda _: os.open("/dev/zero", os.O_RDONLY), "neither a file nor memory"),
    "path only": (lambda folder: os.open(folder, os.O_PATH), "neither a file nor memory"),
    "file for writing only": (
        lambda folder: os.open(folder / "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        "has 0 bytes, but 4096 bytes were announced",
    ),
    "file that is too short": (
        lambda folder: file_of(folder, bytes(SIZE - 1)),
        "has 4095 bytes, but 4096 bytes were announced",
    ),
    "empty file": (lambda folder: file_of(folder, b""), "has 0 bytes"),
    "memory that is too short": (lambda _: sealed_memory(bytes(SIZE - 1)), "has 4095 bytes"),
    "unsealed": (lambda _: sealed_memory(bytes(SIZE), 0), "not sealed"),
    "may be written to": (lambda _: sealed_memory(bytes(SIZE), SHRINK | GROW), "not sealed"),
    "may be written to, for ever": (
        lambda _: sealed_memory(bytes(SIZE), SEAL | SHRINK | GROW),
        "sealed",
    ),
    "may shrink": (lambda _: sealed_memory(bytes(SIZE), GROW | WRITE), "not sealed"),
    "may grow": (lambda _: sealed_memory(bytes(SIZE), SHRINK | WRITE), "not sealed"),
    "may shrink, future writes": (
        lambda _: sealed_memory(bytes(SIZE), GROW | FUTURE_WRITE),
        "sealed",
    ),
}


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_bad_regions_are_refused(tmp_path: Path, name: str) -> None:
    make, why = DESCRIPTORS[name]
    sample = two_columns()
    region = WithDescriptors(announcement(SIZE), (make(tmp_path),))
    with pytest.raises(ProtocolError, match=why):
        read(tmp_path, stream(sample, region, span_list(GOOD)))


@pytest.mark.parametrize("seals", [SEALED, SHRINK | GROW | WRITE, SHRINK | GROW | FUTURE_WRITE])
def test_sufficient_seals_are_accepted(tmp_path: Path, seals: int) -> None:
    sample = two_columns()
    region = WithDescriptors(announcement(128), (sealed_memory(sample.body, seals),))
    assert read(tmp_path, stream(sample, region, span_list(GOOD))) == [sample.batch]


@pytest.mark.parametrize("size", [SIZE + 1, 1 << 40, 1 << 63, TOP - 1])
def test_a_region_smaller_than_announced_is_refused(tmp_path: Path, size: int) -> None:
    sample = two_columns()
    region = WithDescriptors(announcement(size), (sealed_memory(sample.body.ljust(SIZE, b"\0")),))
    with pytest.raises(ProtocolError, match=f"{size} bytes were announced"):
        read(tmp_path, stream(sample, region, span_list(GOOD)))


def test_a_sparse_file_that_cannot_be_mapped_is_refused(tmp_path: Path) -> None:
    """A file may be larger than the address space. The error states the size."""
    descriptor = os.open(tmp_path / "hole", os.O_RDWR | os.O_CREAT)
    size = 1 << 43
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        pytest.skip("this file system has no files that large")
    sample = two_columns()
    body = span_list([*GOOD[:3], (size - 64, 64)])
    try:
        (batch,) = read(
            tmp_path, stream(sample, WithDescriptors(announcement(size), (descriptor,)), body)
        )
    except LimitError as error:
        assert f"cannot map a region of {size} bytes" in str(error)  # noqa: PT017
    else:
        assert batch.column("b").to_pylist() == [0] * 8


def test_offsets_beyond_the_announced_size_are_refused(tmp_path: Path) -> None:
    sample = two_columns()
    region = WithDescriptors(announcement(127), (sealed_memory(sample.body),))
    with pytest.raises(ProtocolError, match="outside the region of 127 bytes"):
        read(tmp_path, stream(sample, region, span_list(GOOD)))


def test_offsets_before_any_region_are_refused(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="before any region"):
        read(tmp_path, stream(sample, b"", span_list(GOOD)))


def test_offsets_into_an_empty_region_are_refused(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="outside the region of 0 bytes"):
        read(
            tmp_path,
            stream(
                sample, WithDescriptors(announcement(0), (sealed_memory(b""),)), span_list(GOOD)
            ),
        )


def test_a_region_of_another_server_is_refused(tmp_path: Path) -> None:
    sample = two_columns()
    region = WithDescriptors(announcement(128, bytes(16)), (sealed_memory(sample.body),))
    with pytest.raises(SplitArrowError, match="remote_handle"):
        read(tmp_path, stream(sample, region, span_list(GOOD)))


def test_a_region_for_a_uri_without_a_handle_is_refused(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="no remote_handle"):
        read(tmp_path, stream(sample, region_of(sample), span_list(GOOD)), handle=None)


@pytest.mark.parametrize("size", [1, 15, 17, 64])
def test_a_remote_handle_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    with (
        ScriptedServer(tmp_path, [], handle=bytes(size)) as server,
        pytest.raises(UriError, match="16 bytes"),
    ):
        splitarrow.open(server.uri)


def test_an_announcement_without_a_descriptor_is_refused(tmp_path: Path) -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError, match="without a descriptor"):
        read(tmp_path, stream(sample, announcement(128), span_list(GOOD)))


@pytest.mark.parametrize("size", [0, 1, 16, 23, 25])
def test_malformed_announcements_are_refused(tmp_path: Path, size: int) -> None:
    sample = two_columns()
    payload = announcement(128)[24:].ljust(25, b"\0")[:size]
    region = WithDescriptors(tagged((1 << 40) + 1, payload), (sealed_memory(sample.body),))
    with pytest.raises(ProtocolError, match=f"announced in {size} bytes"):
        read(tmp_path, stream(sample, region, span_list(GOOD)))


@pytest.mark.parametrize("count", [3, 8, 100])
def test_too_many_descriptors_at_once_are_refused(tmp_path: Path, count: int) -> None:
    sample = two_columns()
    regions = tuple(sealed_memory(sample.body) for _ in range(count))
    with pytest.raises(LimitError, match="too many descriptors"):
        read(tmp_path, stream(sample, WithDescriptors(announcement(128), regions), span_list(GOOD)))


def test_descriptors_without_an_announcement_are_limited(tmp_path: Path) -> None:
    """They come with bytes that announce no region, and the reader does not collect them."""
    sample = two_columns()
    spare = sealed_memory(sample.body)
    steps = stream(sample, region_of(sample), span_list(GOOD))
    first = steps[0]
    assert isinstance(first, bytes)
    flood: list[Step] = [WithDescriptors(bytes([byte]), (spare, spare)) for byte in first[:40]]
    with pytest.raises(LimitError, match="too many descriptors"):
        read(tmp_path, [*flood, first[40:], *steps[1:]])


def test_a_descriptor_that_arrives_early_is_checked(tmp_path: Path) -> None:
    """The reader takes it for the first region and checks it as such."""
    sample = two_columns()
    steps = stream(sample, region_of(sample), span_list(GOOD))
    assert isinstance(steps[0], bytes)
    steps[0] = WithDescriptors(steps[0], (sealed_memory(bytes(SIZE), 0),))
    with pytest.raises(ProtocolError, match="not sealed"):
        read(tmp_path, steps)


def test_a_later_region_replaces_the_one_before(tmp_path: Path) -> None:
    """Batches of earlier regions stay valid."""
    sample = two_columns()
    steps: list[Step] = [message(0, sample.schema)]
    for k in range(1, 41):
        body = (k.to_bytes(8, "little") * 16).rjust(64 * k + 128, b"\0")
        spans = [(0, 0), (64 * k, 64), (0, 0), (64 * k + 64, 64)]
        steps.append(WithDescriptors(announcement(len(body)), (sealed_memory(body),)))
        steps += [message(k, sample.metadata), remote_body(k, span_list(spans))]
    batches = read(tmp_path, [*steps, end(41)])
    assert [batch.column("b")[7].as_py() for batch in batches] == list(range(1, 41))


def test_unused_regions_do_no_harm(tmp_path: Path) -> None:
    sample = two_columns()
    steps: list[Step] = [message(0, sample.schema)]
    steps += [region_of(sample) for _ in range(200)]
    steps += [message(1, sample.metadata), remote_body(1, span_list(GOOD)), end(2)]
    try:
        assert read(tmp_path, steps) == [sample.batch]
    except LimitError as error:
        assert "too many descriptors" in str(error)  # noqa: PT017


def test_a_file_that_shrinks_after_the_announcement_is_an_error(tmp_path: Path) -> None:
    sample = two_columns()
    descriptor = file_of(tmp_path, sample.body.ljust(SIZE, b"\0"))
    go_on = threading.Event()
    steps: list[Step] = [
        message(0, sample.schema),
        WithDescriptors(announcement(SIZE), (descriptor,)),
        message(1, sample.metadata),
        remote_body(1, span_list(GOOD)),
        lambda: go_on.wait(10),
        message(2, sample.metadata),
        remote_body(2, span_list(GOOD)),
        end(3),
    ]
    with ScriptedServer(tmp_path, steps) as server, splitarrow.open(server.uri) as reading:
        assert next(reading) == sample.batch
        os.truncate(tmp_path / "region", 1)
        go_on.set()
        with pytest.raises(DatasetError, match="truncated"):
            next(reading)


def test_a_file_written_to_after_the_announcement_is_an_error(tmp_path: Path) -> None:
    sample = two_columns()
    descriptor = file_of(tmp_path, sample.body.ljust(SIZE, b"\0"))
    steps: list[Step] = [
        message(0, sample.schema),
        WithDescriptors(announcement(SIZE), (descriptor,)),
        lambda: (tmp_path / "region").write_bytes(bytes(SIZE)),
        message(1, sample.metadata),
        remote_body(1, span_list(GOOD)),
        end(2),
    ]
    with ScriptedServer(tmp_path, steps) as server:
        reading = splitarrow.open(server.uri)
        try:
            batches = list(reading)
        except (DatasetError, ProtocolError) as error:  # the file is empty for a moment
            assert re.search("written to|truncated|has 0 bytes", str(error))  # noqa: PT017
        else:  # the reader mapped the file after the change
            assert batches[0].column("a").to_pylist() == [0] * 8
        reading.close()


def test_a_second_descriptor_has_to_be_a_socket(tmp_path: Path) -> None:
    sample = two_columns()
    for index, watch in enumerate((sealed_memory(b"x"), os.open(tmp_path, os.O_RDONLY))):
        folder = tmp_path / str(index)
        folder.mkdir()
        region = WithDescriptors(announcement(128), (sealed_memory(sample.body), watch))
        with pytest.raises(LimitError, match="cannot map"):
            read(folder, stream(sample, region, span_list(GOOD)))


def test_a_revoked_region_is_not_read(tmp_path: Path) -> None:
    """Another process may change the file at any moment."""
    sample = two_columns()
    region = WithDescriptors(
        announcement(128), (file_of(tmp_path, sample.body), one_end_of_a_pipe(tmp_path))
    )
    with pytest.raises(ConnectionLostError, match="server that shared the file is gone"):
        read(tmp_path, stream(sample, region, span_list(GOOD)))


def test_a_region_that_was_revoked_before_is_detected_at_once(tmp_path: Path) -> None:
    for _ in range(100):
        region = MappedRegion(file_of(tmp_path, bytes(64)), 64, one_end_of_a_pipe(tmp_path))
        with pytest.raises(ConnectionLostError, match="server that shared the file is gone"):
            region.check()


def test_offsets_in_a_tcp_stream_are_refused() -> None:
    sample = two_columns()
    with pytest.raises(ProtocolError):
        read(None, stream(sample, b"", span_list(GOOD)), handle=None)
    with pytest.raises(ProtocolError):
        read(None, stream(sample, announcement(128), span_list(GOOD)))


def test_packed_bodies_are_accepted_over_shm(tmp_path: Path) -> None:
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
def test_inconsistent_metadata_is_refused(tmp_path: Path, name: str, at: int) -> None:
    """Either the offsets of the body win, or the reader refuses it. Offset 129 forces a copy."""
    buffers, body_length = CRAFTED[name]
    sample = Sample.of(make_number_batches(1, 8)[0])._replace(
        metadata=plain_batch(8, buffers, body_length)
    )
    data = bytes(at) + sample.body
    region = WithDescriptors(announcement(len(data)), (sealed_memory(data),))
    try:
        batches = read(tmp_path, stream(sample, region, span_list([(0, 0), (at, 64)])))
    except ProtocolError:
        return
    assert batches == [sample.batch]


# Valid servers of another implementation, with other layouts of buffers.


def texts() -> Sample:
    values = range(100)
    columns = {
        "n": pa.array([None if v % 9 == 0 else v for v in values], pa.int64()),
        "t": pa.array([None if v % 5 == 0 else f"text {v}" for v in values], pa.string()),
        "l": pa.array([[v] * (v % 3) for v in values], pa.list_(pa.int16())),
    }
    return Sample.of(pa.record_batch(columns))


def scattered(sample: Sample, align: int, shift: int) -> tuple[bytes, list[Span]]:
    """Lay out the buffers in reverse order, each at a multiple of `align` plus `shift`."""
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
    region = WithDescriptors(announcement(len(data)), (sealed_memory(data),))
    (batch,) = read(tmp_path, stream(sample, region, span_list(spans)))
    assert batch == sample.batch
    (place,) = find_mappings([batch])
    assert "memfd:test" in place.name
    assert place.rights == "r--s"


@pytest.mark.parametrize(("align", "shift"), [(8, 1), (8, 4), (1, 0), (2, 1), (64, 63)])
def test_unaligned_buffers_arrive_equal(tmp_path: Path, align: int, shift: int) -> None:
    sample = texts()
    data, spans = scattered(sample, align, shift)
    region = WithDescriptors(announcement(len(data)), (sealed_memory(data),))
    (batch,) = read(tmp_path, stream(sample, region, span_list(spans)))
    assert batch == sample.batch


def test_two_fields_may_share_a_buffer(tmp_path: Path) -> None:
    sample = two_columns()
    region = WithDescriptors(announcement(SIZE), (sealed_memory(sample.body.ljust(SIZE, b"\0")),))
    spans = [(0, 0), (64, 64), (0, 0), (64, 64)]
    assert read(tmp_path, stream(sample, region, span_list(spans))) == [sample.batch]


def test_scattered_dictionaries_arrive(tmp_path: Path) -> None:
    batch = pa.record_batch({"d": pa.array(["a", "bb", None, "a"]).dictionary_encode()})
    first, *rest = split_messages(ipc_stream([batch], batch.schema))
    steps: list[Step] = [message(0, bytes(first.metadata))]
    for number, each in enumerate(rest, 1):
        assert each.body is not None
        found = [(o, n) for o, n in read_batch_layout(each.metadata).buffers]
        whole = Sample(batch, b"", b"", b"".join(bytes(p) for p in each.body), found)
        data, spans = scattered(whole, 64, 0)
        steps.append(WithDescriptors(announcement(len(data)), (sealed_memory(data),)))
        steps += [message(number, bytes(each.metadata)), remote_body(number, span_list(spans))]
    (got,) = read(tmp_path, [*steps, end(1 + len(rest))])
    assert got == batch


def test_compressed_buffers_stay_compressed_in_the_region(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": pa.array([7] * 5000, pa.int64())})
    first, second = split_messages(ipc_stream([batch], batch.schema, compression="zstd"))
    assert second.body is not None
    body = b"".join(bytes(part) for part in second.body)
    spans = [(o, n) if n else (0, 0) for o, n in read_batch_layout(second.metadata).buffers]
    sample = Sample(batch, bytes(first.metadata), bytes(second.metadata), body, spans)
    region = WithDescriptors(announcement(len(body)), (sealed_memory(body),))
    assert read(tmp_path, stream(sample, region, span_list(spans))) == [batch]


def test_errors_contain_no_secrets(tmp_path: Path) -> None:
    sample = two_columns()
    with ScriptedServer(tmp_path, stream(sample, b"", span_list(GOOD))) as server:
        with pytest.raises(SplitArrowError) as caught:
            splitarrow.open(server.uri).read_all()
        assert "AAECAwQF" not in str(caught.value)
