"""The status page as it is rendered, without a browser."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.http_requests import request
from splitarrow.server import addresses
from splitarrow.server.config import Settings, declarations
from splitarrow.server.http import page
from splitarrow.server.http.page import POINTS, History
from splitarrow.server.metrics import Metrics
from splitarrow.server.report import ProcessReport

TABLE = pa.table({"n": [1, 2, 3]})
EMPTY_ELEMENTS = {"meta", "link", "img", "input", "path"}


class Checker(HTMLParser):
    """Checks that elements are closed in order, and collects addresses and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}
        links = ("href", "src", "action")
        self.addresses += [value or "" for name, value in attrs if name in links]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "canary-of-a-path"
    folder.mkdir()
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[splitarrow.Server]:
    with splitarrow.serve(
        {"plain": TABLE, "<script>alert(1)</script>": TABLE},
        listen=["tcp://127.0.0.1:0", f"shm://{folder}/s"],
        control="grpc://127.0.0.1:0",
        http="http://127.0.0.1:0",
        writable=folder / "uploads",
        batch_rows=7,
    ) as server:
        yield server


def render(server: splitarrow.Server, path: str = "/") -> str:
    answer = request(str(server.http_uri), path)
    assert answer.status == 200
    return answer.text


def test_the_page_is_well_formed_and_refers_to_this_server_only(server: splitarrow.Server) -> None:
    found = check(render(server))
    assert all(re.match("/(?!/)", one) for one in found.addresses)
    assert not {name for name in found.attributes if name == "style" or name.startswith("on")}
    with splitarrow.open(server.uri("plain")):
        check(render(server))


def test_names_are_escaped(server: splitarrow.Server) -> None:
    text = render(server)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_empty_states_are_said_in_words(server: splitarrow.Server) -> None:
    text = render(server)
    for sentence in ("No stream is running.", "Nothing was refused.", "No reader holds a lease"):
        assert sentence in text


def test_the_page_counts_the_datasets_that_it_does_not_show() -> None:
    datasets = {f"data{number}": TABLE for number in range(202)}
    with splitarrow.serve(datasets, http="http://127.0.0.1:0") as server:
        text = render(server)
    assert "2 more datasets are in" in text
    assert text.count('<td class="name">') == 200


def test_the_share_of_a_cache_is_that_of_its_hits() -> None:
    metrics = Metrics()
    metrics.cache_hits["objects",] += 3
    metrics.cache_misses["objects",] += 1
    figures = page._Figures(list(metrics.samples()))
    assert (figures.ratio("objects"), figures.ratio("shared_memory")) == (0.75, None)


def test_settings_are_shown_without_paths(server: splitarrow.Server, folder: Path) -> None:
    text = render(server)
    assert folder.name not in text
    shown = dict(re.findall(r"<dt>(\w+)</dt><dd>([^<]*)</dd>", text))
    assert shown["writable"] == "set"
    assert shown["batch_rows"] == "7"
    assert shown["listen"] == "tcp://127.0.0.1:0, shm://"
    assert shown["reflection"] == "no"
    assert shown["object_cache_bytes"] == "10GiB"
    assert shown["token_file"] == "not set"


def test_a_notice_is_one_of_ours(server: splitarrow.Server) -> None:
    assert "Buy now" not in render(server, "/?notice=Buy+now")
    assert "not running any more" in render(server, "/?notice=ended")


def report(sent: int) -> list[ProcessReport]:
    metrics = Metrics()
    metrics.sent_bytes["data", "tcp"] += sent
    metrics.mapped_bytes["data", "shm"] += sent
    return [ProcessReport("main", list(metrics.samples()), True, True)]


def test_rates_are_bytes_per_second_over_all_transports() -> None:
    now = 0.0
    history = History(lambda: now)
    for seconds, sent in ((0, 100), (2, 150), (3, 150), (4, 90)):  # the last after a restart
        now = float(seconds)
        history.record(lambda sent=sent: report(sent))
    assert history.rates("data") == [50.0, 0.0, 0.0]
    assert history.total() == [50.0, 0.0, 0.0]
    assert history.rates("other") == []


def test_rates_are_kept_for_a_time() -> None:
    now = 0.0
    history = History(lambda: now)
    for step in range(POINTS + 9):
        now = float(step)
        history.record(lambda step=step: report(step * step))
    assert len(history.rates("data")) == POINTS
    line = page.draw_sparkline(history.rates("data"), POINTS)
    assert line.line.startswith("M0,")
    assert line.line.endswith("L120,2")
    assert line.peak == history.rates("data")[-1]


def test_no_time_between_two_calls_has_no_rate() -> None:
    history = History(lambda: 7.0)
    for sent in (1, 2, 3):
        history.record(lambda sent=sent: report(sent))
    assert history.rates("data") == []
    assert history.total() == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("listen", ("tcp://h:1?stream=body", "shm:///canary"), "tcp://h:1, shm://"),
        ("control", "grpc://h:2/canary", "grpc://h:2"),
        ("http", None, "none"),
        ("max_connections", 4096, "4,096"),
        ("drain_seconds", 2.5, "2.5"),
        ("shm_copy", True, "yes"),
        ("shm_trust", False, "no"),
        ("vortex_cache", 1 << 30, "1GiB"),
        ("shm_cache", None, "a quarter of this host's memory"),
        ("log_format", "auto", "auto"),
        ("parquet_keys", "keep", "keep"),
        ("otlp", None, "that of OTEL_EXPORTER_OTLP_ENDPOINT; without it, no traces"),
        ("ready_file", None, "not set"),
        ("token_file", Path("canary"), "set"),
        ("jwks", "https://canary", "set"),
        ("http_hosts", ("canary", "b"), "2 set"),
        ("http_hosts", (), "none"),
    ],
)
def test_a_setting_is_shown_without_secrets(name: str, value: Any, text: str) -> None:
    (declaration,) = (one for one in declarations(Settings) if one.name == name)
    assert page.describe_setting(declaration, value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (1.9, "just now"), (2, "2.0 s ago"), (9.96, "10.0 s ago")],
)
def test_a_moment_ago_is_now(seconds: float, text: str) -> None:
    assert page._format_ago(seconds) == text.replace("0 s", "0\u00a0s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(9.94, "9.9 s"), (10, "10 s"), (60, "1 min"), (3600, "1 h"), (86400 + 61, "1 d")],
)
def test_a_duration_has_up_to_two_units(seconds: float, text: str) -> None:
    assert page.format_duration(seconds) == text.replace(" ", "\u00a0")


@pytest.mark.parametrize("module", [addresses, page])
def test_examples(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
