"""Data that is decoded and not yet taken is bounded, however small it was on the wire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

import splitarrow
from helpers.streams import ipc_stream
from helpers.waiting import wait_until
from helpers.wire_writer import Manners, Writer
from splitarrow.errors import ConnectionLostError, InvalidDataError, LimitError

MIB = 1 << 20
BATCH_BYTES = 64 * MIB
COUNT = 20

MEASURE_CLIENT = """
import sys, splitarrow
uri, prefetch, taken = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with splitarrow.open(uri, prefetch_bytes=prefetch) as stream:
    for _ in range(taken):
        assert next(stream).num_rows == 8 << 20
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def bomb(count: int, codec: str = "zstd") -> bytes:
    """Return a stream of bodies of some KiB, each of which decodes to 64 MiB."""
    zeros = pa.record_batch([pa.array(memoryview(bytes(BATCH_BYTES)).cast("q"))], names=["n"])
    one = ipc_stream([zeros], zeros.schema, compression=codec)
    start = len(ipc_stream([], zeros.schema)) - 8  # without the end marker
    message = one[start:-8]
    return one[:start] + count * message + one[-8:]


def peak_bytes(uri: str, *, prefetch: int, taken: int) -> int:
    """Return the largest memory of a process that takes some batches."""
    command = [sys.executable, "-c", MEASURE_CLIENT, uri, str(prefetch), str(taken)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return int(output) * 1024


@pytest.mark.parametrize("prefetch", [0, BATCH_BYTES])
def test_small_bodies_that_decode_to_large_ones_are_decoded_when_they_are_taken(
    prefetch: int,
) -> None:
    with Writer(bomb(COUNT)) as server:
        peak = peak_bytes(server.uri, prefetch=prefetch, taken=3)
    # The interpreter and its libraries take about 120 MiB. A batch taken, one that waits, and one
    # that is being decoded and validated may exist at a time.
    assert peak < 500 * MIB


def dictionary_stream(dictionaries: int, values: int) -> bytes:
    """Return a compressed stream whose dictionaries have `values` values of 8 bytes each."""
    text = pa.array(["x" * 8] * values)
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), text)
    batch = pa.record_batch([column] * dictionaries, [f"c{k}" for k in range(dictionaries)])
    return ipc_stream([batch], batch.schema, compression="zstd")


def test_the_dictionaries_of_a_stream_are_bounded_together() -> None:
    stream = dictionary_stream(4, MIB // 8)
    with Writer(stream) as server:
        with splitarrow.open(server.uri, max_decoded_bytes=8 * MIB) as reader:
            assert next(reader).num_rows == 1
        with (
            splitarrow.open(server.uri, max_decoded_bytes=5 * MIB) as reader,
            pytest.raises(LimitError, match="dictionaries of the stream decode to"),
        ):
            next(reader)


def test_a_replaced_dictionary_counts_once_and_a_delta_adds() -> None:
    schema = pa.schema([("c", pa.dictionary(pa.int32(), pa.string()))])

    def batch(values: list[str]) -> pa.RecordBatch:
        column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(values))
        return pa.record_batch([column], schema=schema)

    first = ["x" * 1000] * 100
    replaced = [batch([f"{k}", *first]) for k in range(4)]
    grown = [batch(first * k) for k in range(1, 5)]
    limit = 150_000
    with (
        Writer(ipc_stream(replaced, schema)) as server,
        splitarrow.open(server.uri, max_decoded_bytes=limit) as stream,
    ):
        assert stream.read_all().num_rows == 4
    with (
        Writer(ipc_stream(grown, schema, emit_dictionary_deltas=True)) as server,
        splitarrow.open(server.uri, max_decoded_bytes=limit) as stream,
    ):
        assert next(stream).num_rows == 1
        with pytest.raises(LimitError, match="dictionaries"):
            next(stream)


def test_one_compressed_batch_may_not_exceed_the_limit() -> None:
    with (
        Writer(bomb(1)) as server,
        splitarrow.open(server.uri, max_decoded_bytes=BATCH_BYTES - 1) as stream,
        pytest.raises(LimitError, match=f"the limit is {BATCH_BYTES - 1}"),
    ):
        next(stream)


def test_prefetching_pauses_at_the_limit() -> None:
    batch = pa.record_batch([pa.array(range(MIB // 8), pa.int64())], names=["n"])
    stream = ipc_stream([batch] * 32, batch.schema)
    with (
        Writer(stream) as server,
        splitarrow.open(server.uri, prefetch_bytes=32 * MIB, max_decoded_bytes=4 * MIB) as reader,
    ):
        next(reader)
        wait_until(lambda: reader.rows_received >= 5 * batch.num_rows, "a full window")
        assert reader.rows_received <= 6 * batch.num_rows
        assert sum(1 for _ in reader) == 31


def corrupt(stream: bytes, row: bytes) -> bytes:
    """Make the text `row` of a stream invalid UTF-8."""
    assert stream.count(row) == 1
    return stream.replace(row, b"\xff" * len(row))


def text_stream(rows: int, pad: int) -> bytes:
    schema = pa.schema([("text", pa.string())])
    batches = [
        pa.record_batch([pa.array([f"row {k:06} " + "x" * pad])], schema=schema)
        for k in range(rows)
    ]
    return ipc_stream(batches, schema)


@pytest.mark.parametrize("pad", [0, 40_000], ids=["in a run", "alone"])
@pytest.mark.parametrize("finish", ["cut", "failure", "end"])
def test_invalid_data_is_reported_before_a_later_failure(finish: str, pad: int) -> None:
    stream = corrupt(text_stream(9, pad), b"row 000005")
    manners = {
        "cut": Manners(end=False, cut=1 << 30),
        "failure": Manners(failure=("ABORTED", "stop")),
        "end": Manners(),
    }[finish]
    with Writer(stream, manners) as server, splitarrow.open(server.uri, validate="full") as reader:
        for k in range(5):
            assert next(reader)["text"][0].as_py().startswith(f"row {k:06} ")
        with pytest.raises(InvalidDataError) as caught:
            next(reader)
        assert caught.value.sequence == 6
        with pytest.raises(InvalidDataError):
            next(reader)


def test_batches_before_a_lost_connection_are_returned_first() -> None:
    with (
        Writer(text_stream(9, 100), Manners(end=False, cut=1 << 30)) as server,
        splitarrow.open(server.uri) as reader,
    ):
        assert [next(reader).num_rows for _ in range(9)] == [1] * 9
        with pytest.raises(ConnectionLostError, match="missing: message 10 or the end"):
            next(reader)


def test_a_closed_stream_returns_nothing_that_had_arrived() -> None:
    with Writer(text_stream(9, 100)) as server:
        reader = splitarrow.open(server.uri)
        next(reader)
        reader.close()
        with pytest.raises(splitarrow.errors.ClosedError):
            next(reader)


OPENERS: list[Callable[..., object]] = [splitarrow.open, splitarrow.aio.open]


@pytest.mark.parametrize("opener", OPENERS, ids=["blocking", "async"])
def test_the_limit_must_be_positive(opener: Callable[..., object]) -> None:
    with pytest.raises(splitarrow.errors.UsageError, match="max_decoded_bytes is 0; expected 1"):
        opener("tcp://127.0.0.1:1?want_data=0x30000000001&ticket=t", max_decoded_bytes=0)
