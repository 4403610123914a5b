"""The HTTP listener of daemons that are processes: workers, signals, descriptors and secrets."""

from __future__ import annotations

import base64
import http.client
import os
import resource
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import flight, ipc

import splitarrow
from helpers.http_requests import basic, request, request_json, request_over, scrape
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError
from splitarrow.testing import Daemon

pytestmark = pytest.mark.slow

ROWS = 2_000_000
CANARY = "canary-token-4f1c9e5a7b"
VALUE = "canary-value-83d0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = pa.table(
        {"n": pa.array(np.arange(ROWS)), "text": pa.array([VALUE]).take(pa.array([0] * ROWS))}
    )
    path = tmp_path / "canary-path-2b.arrow"
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 50_000)
    return path


def read_in_part(uri: str, stack: ExitStack) -> splitarrow.BatchStream:
    stream = stack.enter_context(splitarrow.open(uri))
    next(iter(stream))
    return stream


def test_the_metrics_of_workers_add_up_and_never_decrease(path: Path) -> None:
    with Daemon({"data": path}, http="http://127.0.0.1:0", workers=2) as daemon:
        for _ in range(10):
            assert splitarrow.open(daemon.uri("data")).read_all().num_rows == ROWS
        wait_until(
            lambda: scrape(daemon.http_uri)["streams_ended_total", "data", "complete", "tcp"] == 10
        )
        samples = scrape(daemon.http_uri)
        assert samples["sent_rows_total", "data", "tcp"] == 10 * ROWS
        assert samples["workers",] == 2
        assert {f"worker-{n}" for n in (1, 2)} | {"main"} == {
            key[1] for key in samples if key[0] == "process_open_fds"
        }
        for child in psutil.Process(daemon.pid).children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
        wait_until(lambda: scrape(daemon.http_uri)["worker_restarts_total",] == 2)
        wait_until(lambda: scrape(daemon.http_uri).get(("workers",)) == 2)
        assert splitarrow.open(daemon.uri("data")).read_all().num_rows == ROWS
        wait_until(
            lambda: scrape(daemon.http_uri)["streams_ended_total", "data", "complete", "tcp"] == 11
        )
        assert scrape(daemon.http_uri)["sent_rows_total", "data", "tcp"] == 11 * ROWS


def test_a_stream_of_a_worker_is_listed_and_cancelled(path: Path) -> None:
    with (
        Daemon({"data": path}, http="http://127.0.0.1:0", workers=2) as daemon,
        ExitStack() as stack,
    ):
        streams = [read_in_part(daemon.uri("data"), stack) for _ in range(4)]
        running = request_json(daemon.http_uri, "/v1/streams")["streams"]
        assert len(running) == 4
        for each in running:
            path_of_form = f"/streams/{each['process']}/{each['stream']}/cancel"
            page = request(daemon.http_uri, path_of_form).text
            token = page.partition('name="token" value="')[2].partition('"')[0]
            answer = request(
                daemon.http_uri, path_of_form, method="POST", body=f"token={quote(token)}"
            )
            assert answer.headers["location"] == "/?notice=cancelled"
        for stream in streams:
            with pytest.raises(SplitArrowError):
                stream.read_all()


def test_a_worker_that_hangs_is_left_out_and_does_not_stop_the_page(path: Path) -> None:
    with Daemon({"data": path}, http="http://127.0.0.1:0", workers=2) as daemon:
        workers = [
            child
            for child in psutil.Process(daemon.pid).children(recursive=True)
            if "spawn_main" in " ".join(child.cmdline())
        ]
        os.kill(workers[0].pid, signal.SIGSTOP)
        try:
            assert scrape(daemon.http_uri)["workers",] == 1
            assert request(daemon.http_uri, "/").status == 200
        finally:
            os.kill(workers[0].pid, signal.SIGCONT)
        wait_until(lambda: scrape(daemon.http_uri)["workers",] == 2)


def test_a_daemon_out_of_descriptors_is_not_ready(path: Path) -> None:
    with Daemon({"data": path}, http="http://127.0.0.1:0") as daemon:
        address = urlsplit(daemon.http_uri)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        assert request_over(connection, "/readyz").status == 200
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{daemon.pid}/fd"))
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (used + 2, before[1]))
        assert request_over(connection, "/readyz").status == 503
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        assert request_over(connection, "/readyz").status == 200
        connection.close()


def test_a_daemon_that_drains_answers_until_its_last_stream_has_ended(path: Path) -> None:
    with Daemon({"data": path}, http="http://127.0.0.1:0", drain_seconds=30) as daemon:
        with ExitStack() as stack:
            stream = read_in_part(daemon.uri("data"), stack)
            daemon.send_signal(signal.SIGTERM)
            wait_until(lambda: request(daemon.http_uri, "/readyz").status == 503)
            assert request(daemon.http_uri, "/healthz").status == 200
            stream.read_all()
        assert daemon.wait() == 0


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(
        f'[[tokens]]\nname = "operator"\ntoken = "{CANARY}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    path.chmod(0o600)
    return path


def test_no_secret_appears_in_a_metric_a_page_or_the_log(path: Path, tokens: Path) -> None:
    answers: list[str] = []
    with Daemon(
        {"data": path},
        control="grpc://127.0.0.1:0",
        http="http://127.0.0.1:0",
        token_file=tokens,
        log_level="debug",
    ) as daemon:
        uri = daemon.http_uri
        tickets = _read_and_fail(daemon)
        wrong = CANARY + "x"
        headers = (f"Bearer {wrong}", basic("operator", wrong), f"Digest {CANARY}")
        answers += [request(uri, "/", Authorization=header).text for header in headers]
        answers.append(request(uri, f"/{CANARY}", token=CANARY).text)
        answers.append(request(uri, f"/?token={CANARY}&notice={CANARY}", token=CANARY).text)
        form = "/streams/main/1/cancel"
        body = f"token={CANARY}"
        answers.append(request(uri, form, method="POST", token=CANARY, body=body).text)
        with (
            splitarrow.connect(daemon.control_uri, token=CANARY) as client,
            client.read("data", transport="tcp") as batches,
        ):
            next(iter(batches))
            pages = ("/", "/metrics", "/v1/datasets", "/v1/streams", "/readyz", "/healthz")
            answers += [request(uri, page, token=CANARY).text for page in pages]
            (running,) = request_json(uri, "/v1/streams", CANARY)["streams"]
            number = running["stream"]
            answers.append(request(uri, f"/streams/main/{number}/cancel", token=CANARY).text)
    for text in answers:
        for secret in (CANARY, VALUE, "canary-path", *tickets):
            assert secret not in text
    for secret in (CANARY, *tickets):
        assert secret not in daemon.log()


def _read_and_fail(daemon: Daemon) -> list[str]:
    """Read, and fail to read, with a token and with tickets; return the tickets."""
    with splitarrow.connect(daemon.control_uri, token=CANARY) as client:
        client.read("data", columns=["n"], limit=10).read_all()
        with pytest.raises(SplitArrowError):
            client.read(f"no-{VALUE}").read_all()
    with pytest.raises(SplitArrowError):
        splitarrow.connect(daemon.control_uri, token=f"{CANARY}x").datasets()
    headers: Any = [(b"authorization", f"Bearer {CANARY}".encode())]
    options = flight.FlightCallOptions(headers=headers)
    with flight.connect(daemon.control_uri.replace("grpc://", "grpc+tcp://")) as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("data"), options)
        ticket: bytes = info.endpoints[0].ticket.ticket
        client.do_get(info.endpoints[0].ticket, options).read_all()
        with pytest.raises(flight.FlightError):  # it was used
            client.do_get(info.endpoints[0].ticket, options).read_all()
    listener = daemon.listen[0]
    with pytest.raises(SplitArrowError):
        splitarrow.open(listener, ticket=ticket).read_all()
    return [ticket.decode("latin-1"), base64.b64encode(ticket).decode()]
