"""A stream that ends while a frame is sent in part: no other frame can follow on its connection."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.errors import ConnectionLostError
from splitarrow.server.streams import RunningStream
from splitarrow.transport.socket_channel import SocketChannel

TABLE = pa.table({"n": pa.array(np.zeros(8 << 20))})
"""More than the sockets of a connection hold, in one batch."""


def wait_until_stuck(server: splitarrow.Server) -> RunningStream:
    """Return the only stream, once its reader makes it wait."""
    streams = server._daemon.streams  # pyright: ignore[reportPrivateUsage]
    wait_until(lambda: any(stream.waits.seconds > 0.05 for stream in streams), "a full socket")
    (stream,) = streams
    return stream


def test_a_cancelled_stream_whose_reader_takes_nothing_ends_its_connection() -> None:
    with splitarrow.serve({"d": TABLE}) as server, splitarrow.open(server.uri("d")) as stream:
        number = wait_until_stuck(server).number
        assert server._daemon.cancel_number(number, None)  # pyright: ignore[reportPrivateUsage]
        wait_until(lambda: server.stats()["connections"] == 0, seconds=5)
        with pytest.raises(ConnectionLostError):
            stream.read_all()


def test_a_file_that_becomes_too_short_for_a_body_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_file(tmp_path / "d.arrow", TABLE, batch_rows=len(TABLE))
    with (
        splitarrow.serve({"d": path}, allow_writers=True) as server,
        splitarrow.open(server.uri("d")) as stream,
    ):
        wait_until_stuck(server)
        os.truncate(path, 1 << 20)
        with pytest.raises(ConnectionLostError):
            stream.read_all()
    assert "stream cut in the middle of a body" in caplog.text


def test_an_unexpected_exception_within_a_frame_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_some = SocketChannel.send_some

    def fail_once(channel: SocketChannel) -> bool:
        is_drained = send_some(channel)
        if is_drained:
            return True
        monkeypatch.undo()
        raise RuntimeError

    with splitarrow.serve({"d": TABLE}) as server:
        monkeypatch.setattr(SocketChannel, "send_some", fail_once)
        with pytest.raises(ConnectionLostError):
            splitarrow.open(server.uri("d")).read_all()
