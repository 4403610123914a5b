"""Row groups are decoded within a number of bytes for all readers, who wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread

import splitarrow
from helpers.files import write_parquet
from helpers.waiting import wait_until
from splitarrow.errors import ExhaustedError
from splitarrow.server.catalog import decoding_shares
from splitarrow.server.catalog.decoding_shares import DecodingCancelledError, DecodingShares
from splitarrow.server.daemon import Daemon

ROW_GROUP_BYTES = 64 << 20
"""What decoding `write_texts` takes at most, and more than the half of it."""


def run_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_shares_are_given_in_the_order_of_the_requests() -> None:
    shares = DecodingShares(10)
    got: list[int] = []

    def take(nbytes: int) -> None:
        with shares.hold(nbytes, "it"):
            got.append(nbytes)

    with ExitStack() as stack, shares.hold(6, "it"):
        for number, nbytes in enumerate((5, 9, 1)):
            stack.callback(run_thread(partial(take, nbytes)).join)
            wait_until(lambda number=number: shares.waiting == number + 1)
        assert got == []  # 1 would fit, but would make the others wait longer
    assert got == [5, 9, 1]
    assert (shares.used, shares.waiting) == (0, 0)


def test_a_share_that_can_never_be_free_is_refused() -> None:
    with (
        pytest.raises(ExhaustedError, match=r"decoding it takes 11 B; .* 10: .*decoding_bytes"),
        DecodingShares(10).hold(11, "it"),
    ):
        pass


def test_waiting_ends_after_some_time() -> None:
    reported: list[int] = []
    shares = DecodingShares(10, reported.append, wait_seconds=0.01)
    with (
        shares.hold(6, "it"),
        pytest.raises(ExhaustedError, match=r"within 0\.01 s: retry later.*parquet_decoding_bytes"),
        shares.hold(6, "it"),
    ):
        pass
    assert reported == [1, -1]
    with shares.hold(10, "it"):
        pass


def test_few_readers_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_shares, "MAX_WAITING", 1)
    shares = DecodingShares(10)

    def take() -> None:
        with shares.hold(6, "it"):
            pass

    with shares.hold(6, "it"):
        thread = run_thread(take)
        wait_until(lambda: shares.waiting)
        with pytest.raises(ExhaustedError, match="1 readers wait already"):
            take()
    thread.join()


async def test_a_reader_that_leaves_stops_waiting() -> None:
    shares = DecodingShares(10)
    errors: list[Exception] = []

    def take() -> None:
        try:
            with shares.hold(6, "it"):
                pass
        except DecodingCancelledError as error:
            errors.append(error)

    with shares.hold(6, "it"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, take)
            await to_thread.run_sync(wait_until, lambda: shares.waiting)
            tasks.cancel_scope.cancel()
        assert shares.waiting == 0
    assert len(errors) == 1


def write_texts(path: Path) -> Path:
    """Write a row group of which a dictionary is the only large part."""
    rows = [letter * (4 << 20) for letter in "abcd"]
    table = pa.table({"t": rows})
    return write_parquet(path, table, compression="brotli", dictionary_pagesize_limit=1 << 30)


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
def test_readers_of_a_server_wait_for_each_other(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons: list[Daemon] = []
    create = Daemon.__init__

    def remember(self: Daemon, *args: Any, **options: Any) -> None:
        daemons.append(self)
        create(self, *args, **options)

    monkeypatch.setattr(Daemon, "__init__", remember)
    path = write_texts(tmp_path / "x.parquet")
    with (
        splitarrow.serve(
            {"x": path, "small": pa.table({"n": [1]})},
            listen=["tcp://127.0.0.1:0", "shm://"],
            control="grpc://127.0.0.1:0",
            parquet_decoding_bytes=ROW_GROUP_BYTES,
        ) as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        shares = daemons[0].decoding
        got: list[int] = []

        def read() -> None:
            got.append(client.read("x", transport=transport).read_all().num_rows)

        with shares.hold(shares.limit - 1, "it"):  # as a reader does that takes no data
            if transport == "tcp":
                with splitarrow.open(server.uri("x", scheme=transport)):
                    wait_until(lambda: shares.waiting == 1)
                wait_until(lambda: shares.waiting == 0)
            thread = run_thread(read)
            wait_until(lambda: shares.waiting == 1)
            assert client.read("small", transport=transport).read_all().num_rows == 1
            assert got == []
        thread.join()
        assert got == [4]
        wait_until(lambda: shares.used == 0)


def test_more_readers_than_worker_threads_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitarrow.server.daemon._WORKER_THREADS", 2)
    path = write_texts(tmp_path / "x.parquet")
    with splitarrow.serve(
        {"x": path}, listen=["tcp://127.0.0.1:0"], parquet_decoding_bytes=ROW_GROUP_BYTES
    ) as server:
        got: list[int] = []

        def read() -> None:
            with splitarrow.open(server.uri("x")) as stream:
                got.append(stream.read_all().num_rows)

        with ExitStack() as stack:
            for _ in range(6):
                stack.callback(run_thread(read).join)
        assert got == [4] * 6


def test_a_row_group_that_can_never_be_decoded_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "x.parquet")
    with (
        splitarrow.serve(
            {"x": path}, listen=["tcp://127.0.0.1:0"], parquet_decoding_bytes="8MiB"
        ) as server,
        splitarrow.open(server.uri("x")) as stream,
        pytest.raises(ExhaustedError, match=r"row group 0 of x\.parquet .*parquet_decoding_bytes"),
    ):
        stream.read_all()
