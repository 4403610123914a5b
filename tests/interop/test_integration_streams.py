"""Streams that other implementations of Arrow wrote, from 0.14 on, through the protocol core."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from helpers.streams import (
    decode_messages,
    list_frames,
    reassembled,
    receive_frames,
    split_messages,
)


def test_the_streams_of_the_integration_tests_arrive(arrow_test_data: Path) -> None:
    paths = sorted(arrow_test_data.glob("arrow-ipc-stream/integration/*/*.stream"))
    assert len(paths) > 30
    for path in paths:
        stream = path.read_bytes()
        with pa.ipc.open_stream(stream) as reader:
            expected, schema = list(reader), reader.schema
        for headroom in (0, 1 << 16):
            messages = reassembled(receive_frames(list_frames(split_messages(stream)), headroom))
            # Some hold values of date64 that are no whole days, which full validation refuses.
            got_schema, got = decode_messages(messages, validate="cheap")
            assert got_schema.equals(schema, check_metadata=True), path
            assert len(got) == len(expected), path
            for received, sent in zip(got, expected, strict=True):
                assert received.equals(sent), path
