"""A real Prometheus scrapes a daemon with workers under load."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import ipc

import splitarrow
from helpers.prometheus import Prometheus
from helpers.waiting import wait_until
from splitarrow.testing import Daemon

pytestmark = pytest.mark.slow

ROWS = 1_000_000

Scrape = Callable[..., Prometheus]
"""Starts a Prometheus for a target, which sends the token of a file."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    table = pa.table({"n": pa.array(np.arange(ROWS))})
    path = tmp_path / "data.arrow"
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 10_000)
    return path


@pytest.fixture
def scrape(tmp_path: Path) -> Iterator[Scrape]:
    """Start a Prometheus that scrapes one target each second."""
    with ExitStack() as stack:

        def scrape(target: str, token_file: Path | None = None) -> Prometheus:
            credentials = {"authorization": {"credentials_file": str(token_file)}}
            job = {
                "job_name": "splitarrow",
                "static_configs": [{"targets": [urlsplit(target).netloc]}],
                **({} if token_file is None else credentials),
            }
            intervals = {"scrape_interval": "1s", "scrape_timeout": "1s"}
            path = tmp_path / "prometheus.yaml"
            path.write_text(yaml.safe_dump({"global": intervals, "scrape_configs": [job]}))
            prometheus = Prometheus(path, tmp_path)
            stack.callback(prometheus.close)
            return prometheus

        yield scrape


@contextmanager
def reading(uri: str, count: int) -> Generator[None]:
    """Read a URI again and again on threads."""
    stopped = threading.Event()

    def read() -> None:
        while not stopped.wait(0.02):
            assert splitarrow.open(uri).read_all().num_rows == ROWS

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def test_prometheus_scrapes_workers_under_load(scrape: Scrape, data: Path) -> None:
    with (
        Daemon({"data": data}, http="http://127.0.0.1:0", workers=2) as daemon,
        reading(daemon.uri("data"), 3),
    ):
        prometheus = scrape(daemon.http_uri)
        wait_until(lambda: prometheus.value("up") == 1, seconds=60)
        wait_until(lambda: prometheus.value("rate(splitarrow_sent_rows_total[1m])") > 0, seconds=60)
        assert prometheus.value("splitarrow_ready") == 1
        assert prometheus.value("splitarrow_workers") == 2
        ended = 'splitarrow_streams_ended_total{dataset="data",transport="tcp",outcome="complete"}'
        wait_until(lambda: prometheus.value(ended) >= 20, seconds=60)
        ratio = "splitarrow_sent_rows_total / on() group_left sum(splitarrow_streams_started_total)"
        wait_until(lambda: prometheus.value(ratio) > 0, seconds=60)
        quantile = (
            "histogram_quantile(0.9, sum by (le) (rate(splitarrow_first_batch_seconds_bucket[1m])))"
        )
        wait_until(lambda: 0 < prometheus.value(quantile) < 10, seconds=60)
        assert len(prometheus.query("splitarrow_process_cpu_seconds_total")) == 3
        assert prometheus.value("scrape_duration_seconds") < 1
        (target,) = prometheus.get("targets")["activeTargets"]
        assert target["lastError"] == ""


def test_prometheus_sends_a_token(scrape: Scrape, data: Path, tmp_path: Path) -> None:
    token, tokens = tmp_path / "token", tmp_path / "tokens.toml"
    token.write_text("a-token-for-prometheus")
    tokens.write_text(
        '[[tokens]]\nname = "prometheus"\ntoken = "a-token-for-prometheus"\ndatasets = ["*"]\n'
    )
    tokens.chmod(0o600)
    with Daemon({"data": data}, http="http://127.0.0.1:0", token_file=tokens) as daemon:
        prometheus = scrape(daemon.http_uri, token)
        wait_until(lambda: prometheus.value("up") == 1, seconds=60)
        assert prometheus.value("splitarrow_datasets") == 1
