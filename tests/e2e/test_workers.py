"""A daemon with worker processes: its control plane, uploads and shared memory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import flight, ipc

import splitarrow
from helpers.daemons import StartDaemon, kill
from helpers.files import write_file, write_shards
from helpers.waiting import wait_until
from splitarrow.errors import (
    ConnectionLostError,
    DeniedError,
    ExhaustedError,
    NotFoundError,
    RemoteError,
    SplitArrowError,
)
from splitarrow.testing import Daemon

WORKERS = 2
ROWS = 6_000_000
CONTROL = "grpc://127.0.0.1:0"


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 48 MB, which sockets and readers that pause do not take whole."""
    path = tmp_path_factory.mktemp("data") / "big.arrow"
    table = pa.table({"n": pa.array(np.arange(ROWS))})
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 20_000)
    return path


@pytest.fixture(scope="module")
def shared(big: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose workers and datasets the tests leave as they were."""
    folder = tmp_path_factory.mktemp("shared")
    server = Daemon(
        {"big": big},
        listen=["tcp://127.0.0.1:0", f"shm://{folder}/socket"],
        control=CONTROL,
        workers=WORKERS,
        writable=folder / "uploads",
    )
    server.start()
    yield server
    kill(server)


def find_workers(server: Daemon) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process(server.pid).children()
        if "spawn_main" in " ".join(child.cmdline())
    ]


def read_in_part(client: splitarrow.Client, stack: ExitStack, **options: Any) -> Any:
    stream = stack.enter_context(client.read("big", resume_attempts=0, **options))
    next(stream)
    return stream


def read_all(uri: str, ticket: bytes | None = None) -> pa.Table:
    with splitarrow.open(uri, ticket) as stream:
        return stream.read_all()


def read_from_all_workers(server: Daemon, name: str) -> list[pa.Table]:
    """Read a dataset over more connections than there are workers."""
    with ThreadPoolExecutor(2 * WORKERS) as threads:
        return list(threads.map(read_all, [f"{server.listen[0]}&ticket={name}"] * 2 * WORKERS))


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
def test_each_transport_delivers_everything(shared: Daemon, transport: str) -> None:
    with splitarrow.connect(shared.control_uri) as client:
        assert [info.name for info in client.datasets()] == ["big"]
        for _ in range(4):
            with client.read("big", transport=transport) as stream:
                assert np.array_equal(stream.read_all()["n"].to_numpy(), np.arange(ROWS))


def test_a_stock_flight_client_lists_and_reads(shared: Daemon) -> None:
    with flight.connect(shared.control_uri.replace("grpc", "grpc+tcp")) as client:
        assert [info.descriptor.path for info in client.list_flights()] == [[b"big"]]
        info = client.get_flight_info(flight.FlightDescriptor.for_path("big"))
        assert client.do_get(info.endpoints[0].ticket).read_all().num_rows == ROWS


def test_all_workers_know_an_upload_when_the_call_returns(shared: Daemon) -> None:
    with splitarrow.connect(shared.control_uri) as client:
        for value in range(50):
            table = pa.table({"value": [value]})
            client.put("new", table, if_exists="replace")
            assert read_from_all_workers(shared, "new") == [table] * 2 * WORKERS
            assert client.read("new", transport="tcp").read_all() == table
            assert client.read("new", transport="shm").read_all() == table
        client.drop("new")
        for _ in range(3 * WORKERS):
            with pytest.raises(NotFoundError):
                splitarrow.open(f"{shared.listen[0]}&ticket=new")
        assert [info.name for info in client.datasets()] == ["big"]


def test_the_figures_of_all_processes_add_up(shared: Daemon) -> None:
    with splitarrow.connect(shared.control_uri) as client:
        before = client.status()
        with ExitStack() as stack:
            for transport in ["tcp"] * 4 + ["shm"]:
                read_in_part(client, stack, transport=transport)
            statuses: list[dict[str, Any]] = []

            def is_settled() -> bool:
                # A process states the two figures one after the other.
                statuses.append(client.status())
                return statuses[-1]["stats"]["streams"] == len(statuses[-1]["streams"])

            wait_until(is_settled, "as many streams as the processes list")
            status = statuses[-1]
            found = status["streams"]
            assert [each["transport"] for each in found].count("tcp") == 4
            assert len({each["stream"] for each in found}) == len(found)
            assert status["stats"]["leases"] > 0
            started = [each["sent"].get("big", {}).get("streams", 0) for each in (before, status)]
            assert started[1] - started[0] == 5

        def is_idle() -> bool:
            stats = client.status()["stats"]
            return not any(stats[name] for name in ("streams", "leases", "leased_bytes"))

        wait_until(is_idle, "the end of all streams and leases")
        after = client.status()
        for name in ("rows", "bytes_sent", "streams_total", "connections_total"):
            assert after["stats"][name] >= status["stats"][name] > before["stats"][name]


def test_a_stream_of_another_process_is_cancelled(shared: Daemon) -> None:
    with splitarrow.connect(shared.control_uri) as client, ExitStack() as stack:
        streams = [read_in_part(client, stack, transport="tcp") for _ in range(4)]
        numbers = [each["stream"] for each in client.status()["streams"]]
        assert len(numbers) == len(streams)
        for number in numbers:
            client.act("cancel", json.dumps({"stream": number}).encode())
        with pytest.raises(NotFoundError, match="no stream"):
            client.act("cancel", json.dumps({"stream": max(numbers) + 100}).encode())
        for stream in streams:
            with pytest.raises(SplitArrowError):
                list(stream)
        wait_until(lambda: not client.status()["streams"], "the end of the streams")


@pytest.mark.slow
def test_a_ticket_is_used_once_over_all_processes(
    daemon: StartDaemon, big: Path, tmp_path: Path
) -> None:
    server = daemon({"big": big}, control=CONTROL, workers=WORKERS, **write_keys(tmp_path))
    with flight.connect(server.control_uri.replace("grpc", "grpc+tcp")) as client:
        tickets = [
            client.get_flight_info(flight.FlightDescriptor.for_path("big")).endpoints[0].ticket
            for _ in range(2)
        ]
        assert read_all(server.listen[0], tickets[0].ticket).num_rows == ROWS
        assert client.do_get(tickets[1]).read_all().num_rows == ROWS
        for ticket in tickets:
            for _ in range(2 * WORKERS):
                with pytest.raises(DeniedError, match="already used"):
                    splitarrow.open(server.listen[0], ticket.ticket)
            with pytest.raises(flight.FlightUnauthenticatedError, match="already used"):
                client.do_get(ticket).read_all()


def write_keys(folder: Path) -> dict[str, Path]:
    keys = folder / "keys"
    keys.write_text(os.urandom(32).hex() + "\n")
    keys.chmod(0o600)
    return {"ticket_key_file": keys}


@pytest.mark.slow
def test_the_streams_of_a_principal_are_limited_over_all_processes(
    daemon: StartDaemon, big: Path, tmp_path: Path
) -> None:
    server = daemon(
        {"big": big},
        control=CONTROL,
        workers=WORKERS,
        max_streams_per_principal=2,
        **write_keys(tmp_path),
    )
    with splitarrow.connect(server.control_uri) as client, ExitStack() as stack:
        streams = [read_in_part(client, stack, transport="tcp") for _ in range(2)]
        for transport in ["tcp"] * 2 * WORKERS + ["flight"]:
            with pytest.raises(ExhaustedError, match="limit of 2 concurrent streams"):
                client.read("big", transport=transport, resume_attempts=0).read_all()
        # What a killed worker served counts no more.
        for worker in find_workers(server):
            worker.kill()
        for stream in streams:
            with pytest.raises((ConnectionLostError, RemoteError)):
                list(stream)
        assert client.read("big", transport="tcp").read_all().num_rows == ROWS


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_knows_the_uploads(
    daemon: StartDaemon, big: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"control": CONTROL, "writable": tmp_path / "up"}
    server = daemon({"big": big}, workers=WORKERS, **options)
    table = pa.table({"value": [1]})
    with splitarrow.connect(server.control_uri) as client:
        client.put("new", table)
        with client.read("big", transport="tcp", parallel=1) as stream:
            rows = next(stream).num_rows
            before = client.status()["stats"]
            workers = find_workers(server)
            for worker in workers:
                worker.kill()
            rows += sum(batch.num_rows for batch in stream)
        assert rows == ROWS
        wait_until(lambda: has_others(server, workers), "other workers")
        assert read_from_all_workers(server, "new") == [table] * 2 * WORKERS
        assert client.status()["stats"]["rows"] > before["rows"]
        assert server.log().count("worker died; starting another") == WORKERS
    assert server.stop() == 0
    again = daemon({"big": big}, workers=WORKERS, **options)
    assert read_from_all_workers(again, "new") == [table] * 2 * WORKERS


def has_others(server: Daemon, workers: list[psutil.Process]) -> bool:
    return len(set(find_workers(server)) - set(workers)) == WORKERS


@pytest.mark.slow
@pytest.mark.parametrize("by", ["action", "signal"])
def test_a_reload_reaches_all_processes(
    daemon: StartDaemon, big: Path, tmp_path: Path, by: str
) -> None:
    small = write_file(tmp_path / "small.arrow", pa.table({"value": [1]}).to_batches())
    config = tmp_path / "splitarrow.toml"
    config.write_text(f'workers = {WORKERS}\n[datasets]\nbig = "{big}"\n')
    arguments = ["--config", str(config)]
    server = daemon(control=CONTROL, arguments=arguments, writable=tmp_path / "up")
    with splitarrow.connect(server.control_uri) as client, ExitStack() as stack:
        client.put("new", pa.table({"value": [2]}))
        stream = read_in_part(client, stack, transport="tcp")
        config.write_text(f'workers = {WORKERS}\n[datasets]\nsmall = "{small}"\n')
        if by == "action":
            client.act("reload", b"")
        else:
            server.send_signal(signal.SIGHUP)
            wait_until(lambda: "small" in client, "the reload")
        assert {len(table) for table in read_from_all_workers(server, "small")} == {1}
        assert len(read_from_all_workers(server, "new")) == 2 * WORKERS
        for _ in range(2 * WORKERS):
            with pytest.raises(NotFoundError):
                splitarrow.open(f"{server.listen[0]}&ticket=big")
        assert sum(batch.num_rows for batch in stream) == ROWS - 20_000
        config.write_text(f'workers = {WORKERS}\n[datasets]\nsmall = "{tmp_path}/none"\n')
        with pytest.raises(RemoteError, match="none"):
            client.act("reload", b"")
        assert len(read_from_all_workers(server, "small")) == 2 * WORKERS


@pytest.mark.slow
def test_the_workers_of_a_killed_parent_leave_the_port_and_end(
    daemon: StartDaemon, big: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    write_shards(folder, [pa.table({"n": range(100_000)})] * 40)
    server = daemon({"big": big, "parts": folder}, control=CONTROL, workers=WORKERS)
    workers = find_workers(server)
    assert len(workers) == WORKERS
    with splitarrow.connect(server.control_uri) as client:
        # One read in progress, in a stream and between two parts.
        with client.read("big", transport="tcp") as stream, client.read("parts") as parts:
            rows = next(stream).num_rows
            next(parts)
            server.kill()
            server.start()
            rows += sum(batch.num_rows for batch in stream)
        assert rows == ROWS
    wait_until(lambda: not any(each.is_running() for each in workers), "the end of the workers")


@pytest.mark.slow
def test_a_second_signal_cuts_the_streams_of_all_processes(
    daemon: StartDaemon, big: Path, tmp_path: Path
) -> None:
    listen = ["tcp://127.0.0.1:0", f"shm://{tmp_path}/socket"]
    server = daemon({"big": big}, listen=listen, control=CONTROL, workers=WORKERS)
    with splitarrow.connect(server.control_uri) as client, ExitStack() as stack:
        streams = [read_in_part(client, stack, transport=each) for each in ["tcp"] * 3]
        server.send_signal()
        wait_until(lambda: "draining" in server.log(), "the drain")
        server.send_signal()
        assert server.wait() == 0
        for stream in streams:
            with pytest.raises(SplitArrowError):
                list(stream)
