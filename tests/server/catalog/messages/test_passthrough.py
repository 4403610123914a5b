"""Runs of messages: found in a file, numbered, and encoded, they equal their single messages."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog import DEFAULTS
from helpers.files import write_file
from helpers.streams import encode_wire_bytes
from splitarrow.errors import DatasetError
from splitarrow.formats.arrow.file import BLOCK, Blocks, find_footer, read_footer
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import PackedRun, SourceMessage, Splitter, count_rows
from splitarrow.protocol.tags import MAX_SEQUENCE
from splitarrow.protocol.uri import Streams
from splitarrow.server.catalog.files.arrow import ArrowFileDataset
from splitarrow.server.catalog.messages.passthrough import MAX_BODY_BYTES, split_runs
from splitarrow.transport.framing import encode_frames

RUN = PackedRun(b"metadata", 5, np.arange(60, dtype=np.uint8).reshape(3, 20)[:, 4:])


def numbers(*lengths: int) -> list[pa.RecordBatch]:
    """Return batches of consecutive numbers with these lengths."""
    ends = np.cumsum(lengths)
    return [
        pa.record_batch({"n": pa.array(range(end - length, end), pa.int64())})
        for end, length in zip(ends, lengths, strict=True)
    ]


def read_groups(path: Path) -> list[Sequence[SourceMessage]]:
    """Return the groups after that of the schema and the first batch."""
    with closing(ArrowFileDataset(path).open(Request("n"), DEFAULTS)) as source:
        first, *groups = source
        assert len(first) == 2
        return groups


@pytest.mark.parametrize("streams", list(Streams))
@pytest.mark.parametrize("first", [0, 7, MAX_SEQUENCE - 2, MAX_SEQUENCE - 1])
def test_the_frames_of_a_run_are_those_of_its_messages(streams: Streams, first: int) -> None:
    together, apart = Splitter(streams, first), Splitter(streams, first)
    frames = together.split(RUN)
    assert encode_wire_bytes(frames) == encode_wire_bytes(apart.split(list(RUN)))
    assert encode_wire_bytes(list(frames)) == encode_wire_bytes(frames)
    assert together.next_sequence == apart.next_sequence


def test_a_run_is_encoded_as_one_buffer() -> None:
    assert len(encode_frames(Splitter().split(RUN))) == 1


def test_a_run_and_its_frames_are_sequences() -> None:
    assert [bytes(message.body[0]) for message in RUN if message.body] == [
        bytes(range(start, start + 16)) for start in (4, 24, 44)
    ]
    assert list(RUN[1:]) == list(RUN)[1:]
    assert count_rows(RUN) == count_rows(list(RUN)) == 15
    frames = Splitter().split(RUN)
    assert len(frames) == 6
    assert list(frames[-2:]) == list(frames)[-2:]
    with pytest.raises(IndexError):
        frames[6]


@pytest.mark.parametrize(
    ("lengths", "runs"),
    [
        ([100] * 50, [50]),
        ([100] * 50 + [99], [50, 1]),
        ([7] + [100] * 50, [1, 50]),
        ([100] * 20 + [50] * 20, [20, 20]),
        ([100] * 7, [7]),
        ([100, 50] * 10, [20]),
        ([0] * 20, [20]),
        ([8192] * 15, [7, 7, 1]),
        ([8192] * 3 + [8191] + [8192] * 3, [3, 1, 3]),
        ([2048] * 2 + [2047] + [2048] * 4, [3, 4]),
        ([MAX_BODY_BYTES // 8] * 3, [1, 1, 1]),
    ],
)
def test_runs_in_files(tmp_path: Path, lengths: list[int], runs: list[int]) -> None:
    batches = numbers(*lengths)
    groups = read_groups(write_file(tmp_path / "n.arrow", [*numbers(1), *batches]))
    assert [len(group) for group in groups] == runs
    messages = [message for group in groups for message in group]
    assert [message.rows for message in messages] == lengths
    for message, batch in zip(messages, batches, strict=True):
        body = b"".join(bytes(part) for part in message.body or ())
        assert body[: 8 * batch.num_rows] == batch["n"].to_numpy().tobytes()


def test_small_equal_messages_form_runs_and_others_do_not(tmp_path: Path) -> None:
    nulls = pa.record_batch({"n": pa.array([1, None, 3] * 30, pa.int64())})
    batches = [*numbers(*[90] * 21), nulls, *numbers(*[90] * 20)]
    groups = read_groups(write_file(tmp_path / "n.arrow", batches))
    assert [(type(group).__name__, len(group)) for group in groups] == [
        ("PackedRun", 20),
        ("list", 1),
        ("PackedRun", 20),
    ]


def test_a_corrupt_message_in_a_run_is_named_by_its_offset(tmp_path: Path) -> None:
    path = write_file(tmp_path / "n.arrow", numbers(*[100] * 20))
    data = bytearray(path.read_bytes())
    at, nbytes = find_footer(bytes(data[-10:]), len(data))
    footer = read_footer(bytes(data[at : at + nbytes]), at)
    for offset, metadata, body in footer.record_batches:
        head = data[offset : offset + metadata]
        head = head.replace(struct.pack("<q", body), struct.pack("<q", body + 8))
        data[offset : offset + metadata] = head
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"corrupt at byte \d+: the message declares a body"):
        read_groups(path)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"head-one", b"head-two", b"longer-head-three"]),
            st.sampled_from([0, 8, 16]),
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 20),
)
def test_the_parts_of_any_messages_are_these_messages(
    messages: list[tuple[bytes, int]], skipped: int
) -> None:
    file = io.BytesIO()
    blocks: list[bytes] = []
    for number, (head, nbytes) in enumerate(messages):
        blocks.append(BLOCK.pack(file.tell(), len(head), nbytes))
        file.write(head + bytes([number]) * nbytes)
    begin = min(skipped, len(messages) - 1)
    base = BLOCK.unpack(blocks[begin])[0]
    data = file.getvalue()[base:]
    end = begin
    for first, stop, run in split_runs(Blocks(b"".join(blocks)), begin, len(messages), data):
        assert first == end < stop
        end = stop
        if run is not None:
            expected = [
                head + bytes([first + index]) * nbytes
                for index, (head, nbytes) in enumerate(messages[first:stop])
            ]
            assert [row.tobytes() for row in run] == expected
            assert len(set(messages[first:stop])) == 1
    assert end == len(messages)
