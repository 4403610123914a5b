"""/metrics: the text formats, and what a scraper may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import splitarrow
from helpers.http_requests import request, scrape
from helpers.waiting import wait_until
from splitarrow.server.metrics import DaemonMetrics, Metrics

TABLE = pa.table({"n": list(range(1000))})
TOKEN = "canary-of-a-token-0123456789"
OPERATOR = "operator-of-a-token-0123456789"


@pytest.fixture
def server() -> Iterator[splitarrow.Server]:
    with splitarrow.serve({"data": TABLE}, http="http://127.0.0.1:0") as server:
        yield server


def http_uri(server: splitarrow.Server) -> str:
    assert server.http_uri is not None
    return server.http_uri


def read(server: splitarrow.Server, name: str = "data") -> None:
    before = sum(server._daemon.metrics.ended_streams.values())
    with splitarrow.open(server.uri(name)) as stream:
        stream.read_all()
    wait_until(lambda: sum(server._daemon.metrics.ended_streams.values()) > before)


def test_both_formats_are_valid_and_only_declared_names_appear(server: splitarrow.Server) -> None:
    read(server)
    names = {
        metric.exported_name for metric in (*Metrics.declarations(), *DaemonMetrics.declarations())
    }
    accept = "application/openmetrics-text;version=1.0.0"
    answer = request(http_uri(server), "/metrics", Accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = list(text_string_to_metric_families(answer.text))
    exported = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    assert exported <= names
    plain = "text/plain; version=0.0.4; charset=utf-8"
    for accept in ("", "text/plain;version=abc", "text/plain;version=9;escaping=x", "*/*"):
        answer = request(http_uri(server), "/metrics", Accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (200, plain)
    accept = "text/plain;version=1.0.0, application/openmetrics-text ;version=abc"
    answer = request(http_uri(server), "/metrics", Accept=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")


def test_buckets_are_cumulative(server: splitarrow.Server) -> None:
    for _ in range(3):
        read(server)
    buckets = [
        value
        for (name, *_), value in scrape(http_uri(server)).items()
        if name == "first_batch_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(
        f'[[tokens]]\nname = "reader"\ntoken = "{TOKEN}"\ndatasets = ["da*"]\n'
        f'[[tokens]]\nname = "operator"\ntoken = "{OPERATOR}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    path.chmod(0o600)
    return path


def test_a_scraper_sees_the_names_of_the_datasets_that_its_token_may_read(tokens: Path) -> None:
    with splitarrow.serve(
        {"data": TABLE, "hidden": TABLE}, http="http://127.0.0.1:0", token_file=tokens
    ) as server:
        for name in ("data", "hidden", "hidden"):
            read(server, name)
        own, all_names = scrape(http_uri(server), TOKEN), scrape(http_uri(server), OPERATOR)
    assert own["streams_started_total", "data", "tcp"] == 1
    assert own["streams_started_total", "other", "tcp"] == 2
    assert not any("hidden" in key for key in own)
    assert all_names["streams_started_total", "hidden", "tcp"] == 2
