"""A real Prometheus scrapes a daemon with workers under load."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

import splitarrow
from helpers.http_requests import request
from helpers.package import ROOT
from helpers.page_session import find_free_port
from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.errors import NotFoundError
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

pytestmark = pytest.mark.slow

ROWS = 1_000_000
NEVER = "certificate_expiry|mapped_bytes_total.*> 0"
"""Queries without data for a daemon that has neither TLS nor shared memory."""


@pytest.fixture
def program() -> str:
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("no Prometheus is installed, such as Debian's package prometheus")
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    table = pa.table({"n": pa.array(np.arange(ROWS))})
    path = tmp_path / "data.arrow"
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 10_000)
    return path


class Prometheus:
    """A Prometheus that scrapes one target each second."""

    def __init__(self, program: str, folder: Path, target: str, token_file: Path | None) -> None:
        port = find_free_port()
        config = folder / "prometheus.yaml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n"
            "  - job_name: splitarrow\n"
            f"    static_configs: [{{targets: [{urlsplit(target).netloc!r}]}}]\n"
            + (f"    authorization: {{credentials_file: {token_file}}}\n" if token_file else "")
        )
        self.uri = f"http://127.0.0.1:{port}"
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the results of a query; none while Prometheus starts."""
        try:
            answer = request(self.uri, f"/api/v1/query?query={quote(expression)}")
        except ConnectionError:
            return []
        document = json.loads(answer.text) if answer.status == 200 else {"data": {"result": []}}
        return document["data"]["result"]

    def value(self, expression: str) -> float:
        """Return the single value of a query; NaN if it has no result."""
        results = self.query(expression)
        return float(results[0]["value"][1]) if len(results) == 1 else float("nan")

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()


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


def test_prometheus_scrapes_workers_under_load(program: str, data: Path, tmp_path: Path) -> None:
    with (
        Daemon({"data": data}, http="http://127.0.0.1:0", workers=2) as daemon,
        Prometheus(program, tmp_path, daemon.http_uri, None) as prometheus,
        reading(daemon.uri("data"), 3),
    ):
        wait_until(lambda: prometheus.value("up") == 1, seconds=60)
        wait_until(lambda: prometheus.value("rate(splitarrow_sent_rows_total[5s])") > 0, seconds=60)
        assert prometheus.value("splitarrow_ready") == 1
        assert prometheus.value("splitarrow_workers") == 2
        ended = 'splitarrow_streams_ended_total{dataset="data",transport="tcp",outcome="complete"}'
        wait_until(lambda: prometheus.value(ended) >= 20, seconds=60)
        ratio = "splitarrow_sent_rows_total / on() group_left sum(splitarrow_streams_started_total)"
        assert prometheus.value(ratio) > 0
        quantile = (
            "histogram_quantile(0.9, sum by (le) (rate(splitarrow_first_batch_seconds_bucket[5s])))"
        )
        assert 0 < prometheus.value(quantile) < 10
        assert len(prometheus.query("splitarrow_process_cpu_seconds_total")) == 3
        assert prometheus.value("scrape_duration_seconds") < 1
        targets = json.loads(request(prometheus.uri, "/api/v1/targets").text)
        (target,) = targets["data"]["activeTargets"]
        assert target["lastError"] == ""


def dashboard_queries() -> Iterator[str]:
    """Yield the queries of the dashboard for Grafana, with values in the place of its variables."""
    (path,) = (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            yield re.sub(r'"\$\w+"', '".*"', query)


def test_the_queries_of_the_dashboard_return_data(program: str, data: Path, tmp_path: Path) -> None:
    published = tmp_path / "published"
    publish(VersionStore(published), "job", pa.table({"n": [1, 2]}))
    with (
        Daemon(
            {"data": data, "published": published}, http="http://127.0.0.1:0", workers=2
        ) as daemon,
        Prometheus(program, tmp_path, daemon.http_uri, None) as prometheus,
        reading(daemon.uri("data"), 2),
    ):
        daemon.send_signal(signal.SIGHUP)
        with pytest.raises(NotFoundError):
            splitarrow.open(daemon.uri("data").replace("=data", "=date")).read_all()
        left = {query for query in dashboard_queries() if not re.search(NEVER, query)}
        assert len(left) > 25

        def query_again() -> bool:
            left.difference_update([query for query in left if prometheus.query(query)])
            return not left

        try:
            wait_until(query_again, seconds=60)
        except AssertionError:
            assert left == set()


def test_prometheus_sends_a_token(program: str, data: Path, tmp_path: Path) -> None:
    token, tokens = tmp_path / "token", tmp_path / "tokens.toml"
    token.write_text("a-token-for-prometheus")
    tokens.write_text(
        '[[tokens]]\nname = "prometheus"\ntoken = "a-token-for-prometheus"\ndatasets = ["*"]\n'
    )
    tokens.chmod(0o600)
    with (
        Daemon({"data": data}, http="http://127.0.0.1:0", token_file=tokens) as daemon,
        Prometheus(program, tmp_path, daemon.http_uri, token) as prometheus,
    ):
        wait_until(lambda: prometheus.value("up") == 1, seconds=60)
        assert prometheus.value("splitarrow_datasets") == 1
