"""Arrays from strangers are decoded in a child process, whose end costs one stream at most."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.vortex_messages import (
    decode_with_library,
    encode_arrow,
    make_messages,
    put_table_first,
    with_body,
)
from splitarrow.errors import InvalidDataError, LimitError, MissingExtraError
from splitarrow.formats.vortex import decoder as decoding
from splitarrow.formats.vortex.message import (
    Message,
    MessageKind,
    VortexLimits,
    build_message,
    encode_message,
)
from splitarrow.isolation import array_decoder
from splitarrow.isolation.array_decoder import (
    DecoderProcess,
    IsolatedDecoder,
    ProcessLimits,
    ProcessPool,
)
from splitarrow.isolation.child import (
    RESULT_COLUMN,
    Packet,
    PacketKind,
    map_memory,
    receive_packet,
    send_packet,
    store,
)

LIMITS = VortexLimits(decoded_bytes=64 << 20)
NUMBERS = encode_arrow(pa.array([60, 75, None]))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool()
    yield pool
    pool.close()


def open_decoder(pool: ProcessPool, dtype: Message) -> IsolatedDecoder:
    return IsolatedDecoder(dtype, LIMITS, pool=pool)


def decode(pool: ProcessPool, pair: tuple[Message, Message]) -> pa.Array:
    decoder = open_decoder(pool, pair[0])
    try:
        return decoder.decode_arrow(pair[1])
    finally:
        decoder.close()


def idle_pids(pool: ProcessPool) -> list[int]:
    return [process.pid for _, process in pool._idle]


def make_bomb(element: object, length: int, rows: int) -> tuple[Message, Message]:
    """Return an array whose rows all refer to one long list."""
    lists: Any = pa.array([[element] * length])  # pyright: ignore[reportArgumentType]
    indices: Any = pa.array(np.zeros(rows, np.int8))
    return encode_arrow(pa.DictionaryArray.from_arrays(indices, lists), compress=False)


def test_all_arrays_are_decoded_as_the_library_does_it(pool: ProcessPool) -> None:
    for dtype, message in make_messages().values():
        expected = decode_with_library(dtype, message)
        assert decode(pool, (dtype, message)).equals(expected)
        assert decode(pool, (dtype, put_table_first(message))).equals(expected)
        assert decoding.ArrayDecoder(dtype).decode_arrow(message).equals(expected)
    assert len(idle_pids(pool)) == 1, "one child has decoded everything"


def test_what_the_library_refuses_costs_no_process(pool: ProcessPool) -> None:
    decode(pool, NUMBERS)
    before = idle_pids(pool)
    dtype, message = encode_arrow(pa.array([60, 75, 90]), compress=False)
    other = build_message(
        MessageKind.ARRAY, message.body, row_count=3, encodings=["vortex.constant"]
    )
    with pytest.raises(InvalidDataError, match=r"the array cannot be decoded: "):
        decode(pool, (dtype, other))
    unknown = build_message(
        MessageKind.ARRAY,
        message.body,
        row_count=3,
        encodings=["no.such.encoding" for _ in message.header.encodings],
    )
    with pytest.raises(InvalidDataError, match=r"no\.such\.encoding"):
        decode(pool, (dtype, unknown))
    assert decode(pool, NUMBERS).to_pylist() == [60, 75, None]
    assert idle_pids(pool) == before


def test_what_the_checks_refuse_reaches_no_process() -> None:
    pool = ProcessPool()
    dtype, message = NUMBERS
    with pytest.raises(InvalidDataError, match=r"the body has"):
        decode(pool, (dtype, message._replace(body=[b"1234"])))
    assert idle_pids(pool) == []


def test_a_bomb_costs_its_stream_only(pool: ProcessPool) -> None:
    other = open_decoder(pool, NUMBERS[0])
    other.decode_arrow(NUMBERS[1])
    with pytest.raises(LimitError, match=r"takes more than the 134217728 bytes of memory"):
        decode(pool, make_bomb(7, 100_000, 20_000))
    assert other.decode_arrow(NUMBERS[1]).to_pylist() == [60, 75, None]
    other.close()
    assert decode(pool, NUMBERS).to_pylist() == [60, 75, None]


def test_a_result_above_the_limit_is_refused(pool: ProcessPool) -> None:
    dtype, message = make_bomb(7, 1000, 100)
    expected = decode(pool, (dtype, message))
    size = pa.ipc.get_record_batch_size(pa.record_batch({RESULT_COLUMN: expected}))
    limits = ProcessLimits(1 << 28, size)
    decoder = IsolatedDecoder(dtype, process_limits=limits, pool=pool)
    assert decoder.decode_arrow(message).equals(expected)
    limit = rf"has \d+ bytes once decoded; the limit is {size}$"
    with pytest.raises(LimitError, match=limit):
        decoder.decode_arrow(make_bomb(7, 1000, 101)[1])
    assert decoder.decode_arrow(make_bomb(7, 10, 10)[1]).to_pylist() == [[7] * 10] * 10
    decoder.close()


def test_too_much_processor_time_ends_a_stream() -> None:
    """The kernel counts whole seconds, and one of them ends within one of these arrays."""
    limits = ProcessLimits(1 << 28, 1 << 28, seconds=0, bytes_per_second=1 << 40)
    dtype, message = make_bomb("x", 1000, 1000)
    decoder = IsolatedDecoder(dtype, process_limits=limits)

    def decode_until_refused() -> None:
        for _ in range(10_000):
            decoder.decode_arrow(message)

    with pytest.raises(LimitError, match=r"not decoded within the time"):
        decode_until_refused()
    decoder.close()


def test_a_child_that_does_not_answer_is_killed() -> None:
    process = DecoderProcess(ProcessLimits(1 << 28, 1 << 28, wall_seconds=0.5))
    dtype = decoding.read_dtype_message(NUMBERS[0], LIMITS)[1]
    assert process.decode(dtype, NUMBERS[1], 24).to_pylist() == [60, 75, None]
    assert process._connection.gettimeout() == 0.5
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(LimitError, match=r"did not answer within 0\.5 seconds"):
        process.decode(dtype, NUMBERS[1], 24)
    assert not process.is_alive


def test_a_child_that_does_not_start_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_decoder, "_START_SECONDS", 0.001)
    process = DecoderProcess(ProcessLimits(1 << 28, 1 << 28))
    with pytest.raises(LimitError, match=r"did not answer"):
        process.decode([], NUMBERS[1], 24)
    assert not process.is_alive


def test_the_kernel_limits_a_child() -> None:
    """It has a session of its own, no core dump, and little more than what the array may take."""
    process = DecoderProcess(ProcessLimits(1 << 30, 1 << 28, 7, bytes_per_second=1 << 10))
    dtype = decoding.read_dtype_message(NUMBERS[0], LIMITS)[1]
    process.decode(dtype, NUMBERS[1], 20 << 10)
    used = resource.prlimit(process.pid, resource.RLIMIT_AS)[0] - (1 << 30) - (256 << 20)
    mapped = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    assert mapped / 2 < used <= mapped
    nbytes = sum(map(len, dtype)) + sum(map(len, encode_message(NUMBERS[1])))
    allowed = 7 + (4 * nbytes + (20 << 10)) / (1 << 10)
    until = resource.prlimit(process.pid, resource.RLIMIT_CPU)[0]
    assert allowed < until < allowed + 10  # the start of the child counts
    assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (64, 64)
    assert os.getsid(process.pid) == process.pid
    process.close()


def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_decoder, "_END_SECONDS", 0.01)
    process = DecoderProcess(ProcessLimits(1 << 28, 1 << 28))
    os.kill(process.pid, signal.SIGSTOP)
    process.close()
    assert process._process.returncode == -signal.SIGKILL


def test_a_pool_keeps_the_two_processes_that_it_got_last() -> None:
    pool = ProcessPool()
    limits = ProcessLimits(1 << 28, 1 << 28)
    processes = [DecoderProcess(limits) for _ in range(3)]
    for process in processes:
        pool.put(limits, process)
    assert idle_pids(pool) == [process.pid for process in processes[1:]]
    pool.close()


def test_the_default_limits_of_a_process_follow_those_of_the_stream(pool: ProcessPool) -> None:
    size = LIMITS.decoded_bytes
    expected = ProcessLimits(2 * size, size, 1, 64 << 20, 120.0)
    assert open_decoder(pool, NUMBERS[0])._process_limits == expected


def test_memory_is_written_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes up to 2 GiB at a time."""
    monkeypatch.setattr(os, "writev", lambda file, views: os.write(file, views[0][:2]))
    descriptor = store([b"abcde", b"f", b"ghi"])
    assert map_memory(descriptor)[:] == b"abcdefghi"
    os.close(descriptor)


def test_a_packet_carries_its_numbers_its_descriptor_and_the_begin_of_its_text() -> None:
    ours, theirs = socket.socketpair()
    descriptor = store([b"abc", b"", memoryview(b"de"), *[b"f"] * 600])
    with ours, theirs:
        for packet in (
            Packet(PacketKind.READY),
            Packet(PacketKind.DECODE, (1, 2, 3, 4, 5), descriptor=descriptor),
            Packet(PacketKind.REFUSED, text="é" * (64 << 10)),
        ):
            send_packet(ours, packet)
            received = receive_packet(theirs)
            assert received is not None
            assert received[:2] == packet[:2]
            assert received.text == packet.text[: 32 << 10]
            assert (received.descriptor >= 0) == (packet.descriptor >= 0)
            if received.descriptor >= 0:
                assert map_memory(received.descriptor)[:] == b"abcde" + b"f" * 600
                os.close(received.descriptor)
        os.close(descriptor)
        ours.sendall(b"short")
        ours.shutdown(socket.SHUT_WR)
        assert receive_packet(theirs) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_dies_fails_its_stream(pool: ProcessPool, number: signal.Signals) -> None:
    decoder = open_decoder(pool, NUMBERS[0])
    decoder.decode_arrow(NUMBERS[1])
    assert decoder._process is not None
    os.kill(decoder._process.pid, number)
    with pytest.raises((InvalidDataError, LimitError), match=number.name):
        decoder.decode_arrow(NUMBERS[1])
    assert decoder.decode_arrow(NUMBERS[1]).to_pylist() == [60, 75, None]
    decoder.close()


def test_no_process_can_change_a_result(pool: ProcessPool) -> None:
    found = decode(pool, NUMBERS)
    data = found.buffers()[1]
    assert data is not None
    assert not data.is_mutable


def test_a_forked_process_leaves_the_children_to_its_parent() -> None:
    pool = ProcessPool()
    decode(pool, NUMBERS)
    (before,) = idle_pids(pool)
    child = os.fork()
    if child == 0:  # pragma: no cover
        pool.forget()
        os._exit(len(idle_pids(pool)))
    assert os.waitpid(child, 0)[1] == 0
    assert decode(pool, NUMBERS).to_pylist() == [60, 75, None]
    assert idle_pids(pool) == [before]
    pool.close()


def test_children_end_with_their_pool() -> None:
    pool = ProcessPool()
    decode(pool, NUMBERS)
    (pid,) = idle_pids(pool)
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[vortex\]'"):
        IsolatedDecoder(NUMBERS[0])


def test_other_messages_are_refused(pool: ProcessPool) -> None:
    dtype, message = NUMBERS
    with pytest.raises(InvalidDataError, match=r"ARRAY, not DTYPE"):
        open_decoder(pool, message)
    with pytest.raises(InvalidDataError, match=r"is a DTYPE; expected an ARRAY"):
        decode(pool, (dtype, dtype))
    assert with_body(message, [b""]).header.body_size == 0
