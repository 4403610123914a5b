"""What the compression `auto` samples and compresses of the messages of a table."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from splitarrow.formats.arrow.message import read_batch_header
from splitarrow.protocol.request import Request
from splitarrow.server.bodies.packed import AdaptiveCompression, _take_samples
from splitarrow.server.catalog.dataset import Encoding, Source
from splitarrow.server.catalog.tables import TableDataset


def open_table(*columns: Any) -> Source:
    """Return the messages of one batch for each column."""
    schema = pa.schema([("n", pa.int64())])
    batches = [pa.record_batch({"n": pa.array(column, pa.int64())}) for column in columns]
    return TableDataset(pa.Table.from_batches(batches, schema)).open(Request("x"), Encoding())


@pytest.mark.parametrize(
    ("values", "ratios"),
    [
        (np.zeros(512, np.int64), (1e-6, 0.1)),
        (np.zeros(1 << 20, np.int64), (1e-6, 0.1)),
        (np.random.default_rng(7).integers(0, 1 << 62, 1 << 17), (0.9, 1.1)),
        (np.zeros(511, np.int64), None),
    ],
)
def test_a_sample_shows_how_far_the_largest_body_shrinks(
    values: Any, ratios: tuple[float, float] | None
) -> None:
    source = open_table([1, 2, 3], values)
    samples = _take_samples([message for group in source for message in group])
    source.close()
    if ratios is None:
        assert samples is None
        return
    assert samples is not None
    assert [sample.codec for sample in samples] == ["lz4", "zstd"]
    for sample in samples:
        assert ratios[0] < sample.ratio < ratios[1]
        assert 1e6 < sample.bytes_per_second < 1e12


def test_bodies_of_4_kib_and_more_are_compressed() -> None:
    channel: Any = None  # It is used once something has been sent.
    adaptive = AdaptiveCompression(channel)
    assert adaptive.codec is None
    adaptive._choice.codec = "zstd"
    assert adaptive.codec == "zstd"
    source = adaptive.prepare(open_table(*(np.zeros(n, np.int64) for n in (511, 512, 9000))))
    messages = [message for group in source for message in group if message.body is not None]
    source.close()
    assert messages[0].body_length == 511 * 8
    assert [message.body_length < 200 for message in messages] == [False, True, True]
    codecs = [read_batch_header(message.metadata).codec for message in messages]
    assert codecs == [None, "zstd", "zstd"]
    assert all(len(message.metadata) % 8 == 0 for message in messages)


def test_samples_decide_about_the_messages_that_follow() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel: Any = ours
        compression = AdaptiveCompression(channel)
        source = compression.prepare(open_table(*[np.zeros(1 << 19, np.int64)] * 6))
        for group in source:
            compression.record(group, send_seconds=10)
        source.close()
    assert compression.codec in ("lz4", "zstd")
