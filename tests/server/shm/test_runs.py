"""Many small messages of a file: leased and read in runs, which change nothing for readers."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.shm import find_mappings, has_no_leases
from helpers.shm_peers import (
    Sample,
    ScriptedServer,
    WithDescriptors,
    announcement,
    end,
    message,
    remote_body,
    sealed_memory,
    span_list,
)
from helpers.shm_servers import Serve
from helpers.waiting import wait_until
from splitarrow.errors import ProtocolError, SplitArrowError
from splitarrow.formats.arrow.message import encapsulate


def make_batches(*lengths: int) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    words = pa.array(["one", "two"])
    for number, length in enumerate(lengths):
        codes = pa.array([k % 2 for k in range(length)], pa.int8())
        columns = {
            "n": pa.array(range(number, number + length), pa.int64()),
            "word": pa.DictionaryArray.from_arrays(codes, words),
        }
        batches.append(pa.record_batch(columns))
    return batches


def plain(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch.select(["n"]) for batch in batches]


@pytest.mark.parametrize("lengths", [[50] * 400, [50] * 300 + [7], [9] + [50] * 300 + [60] * 100])
@pytest.mark.parametrize("dictionary", [False, True])
def test_a_file_of_small_batches(
    serve: Serve, tmp_path: Path, lengths: list[int], dictionary: bool
) -> None:
    batches = make_batches(*lengths)
    sent = batches if dictionary else plain(batches)
    server = serve({"data": write_file(tmp_path / "data.arrow", sent)})
    with splitarrow.open(server.uri("data")) as stream:
        received = list(stream)
        assert received == sent
        stats = server.stats()
        if dictionary:  # of one byte for each row, beside two buffers of the dictionary itself
            assert stats["leases"] == 2 * len(lengths) + 2
            assert 9 * sum(lengths) < stats["leased_bytes"] < 9 * sum(lengths) + 64
        else:
            assert (stats["leases"], stats["leased_bytes"]) == (len(lengths), 8 * sum(lengths))
        assert len(find_mappings(received)) == 1
    del received
    del stream
    wait_until(has_no_leases(server))
    assert server.stats()["bad_frees"] == 0


def test_a_kept_batch_keeps_its_run_leased_and_no_other(serve: Serve, tmp_path: Path) -> None:
    sent = plain(make_batches(*[50] * 2000))
    server = serve({"data": write_file(tmp_path / "data.arrow", sent)})
    with splitarrow.open(server.uri("data")) as stream:
        received = list(stream)
    kept = received[1000]
    received.clear()
    wait_until(lambda: server.stats()["leases"] <= 500)
    assert server.stats()["leases"] >= 1
    assert kept == sent[1000]
    del kept
    wait_until(has_no_leases(server))


def test_batches_of_a_run_survive_a_change_of_the_file(serve: Serve, tmp_path: Path) -> None:
    sent = plain(make_batches(*[50] * 3000))
    path = write_file(tmp_path / "data.arrow", sent)
    server = serve({"data": path})
    with splitarrow.open(server.uri("data")) as stream:
        received = [next(stream) for _ in range(300)]
        # The writer waits until the server has given up its lease, and so copied the file.
        writer = threading.Thread(target=path.write_bytes, args=(b"\xee" * path.stat().st_size,))
        writer.start()
        wait_until(lambda: not writer.is_alive())
        assert received == sent[:300]
        with pytest.raises(SplitArrowError):
            received.extend(stream)
    assert received == sent[: len(received)]


@pytest.mark.parametrize("wrong", ["offset", "length", "total"])
def test_a_hostile_server_cannot_lead_a_run_out_of_its_region(tmp_path: Path, wrong: str) -> None:
    sample = Sample.of(plain(make_batches(50))[0])
    head = encapsulate(sample.metadata)
    count, period = 40, len(head) + len(sample.body)
    region = (head + sample.body) * count
    steps: list[bytes | WithDescriptors] = [message(0, sample.schema)]
    steps.append(WithDescriptors(announcement(len(region)), (sealed_memory(region),)))
    frames = b""
    for number in range(count):
        begin = number * period + len(head)
        spans = [
            (begin + offset, length) if length else (0, 0) for offset, length in sample.buffers
        ]
        payload = bytearray(span_list(spans))
        if number == 30 and wrong != "tag":
            at = {"offset": 16 + 16, "length": 16 + 24, "total": 0}[wrong]
            payload[at + 6] = 0xFF
        frames += message(number + 1, sample.metadata)
        frames += remote_body(number + 1, bytes(payload))
    with (
        ScriptedServer(tmp_path, [*steps, frames, end(count + 1)]) as server,
        splitarrow.open(server.uri) as stream,
    ):
        received: list[pa.RecordBatch] = []
        with pytest.raises(ProtocolError) as caught:
            received.extend(stream)
        assert caught.value.sequence == 31
    assert received == [sample.batch] * len(received)
    assert len(received) <= 30
