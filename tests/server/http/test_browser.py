"""The status page in a real browser: light and dark, on a desktop and on a phone.

With the variable ``SCREENSHOTS=FOLDER``, the tests write the pictures of the documentation.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page
from pyarrow import ipc

import splitarrow
from helpers.browser import running_browser
from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.errors import RemoteError, SplitArrowError
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.http import listener
from splitarrow.server.http.page import POINTS

pytestmark = pytest.mark.slow

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
SCHEMES = ("light", "dark")
CONTRAST = """
() => {
  const channel = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const luminance = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  let least = 99;
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || element.closest('svg')) continue;
    const [a, b] = [parse(getComputedStyle(element).color), ground(element)].map(luminance);
    least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
  }
  return least;
}
"""
"""Returns the least contrast of a text and what is behind it, by the formula of WCAG 2."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


class Load:
    """Readers of all kinds, so that the page has something to show."""

    def __init__(self, server: splitarrow.Server) -> None:
        assert server._http is not None
        self.history = server._http.application.history
        self._server = server
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stack = ExitStack()

    def __enter__(self) -> Load:
        self._hold(self._server.uri("trips/2026", "shm"))
        self._hold(self._server.uri("flights", "tcp"))
        with suppress(SplitArrowError):
            splitarrow.open(self._server.uri("flights").replace("=flights", "=flihgts"))
        for name, pause in (("trips/2026", 0.004), ("weather", 0.09), ("sensors", 0.02)):
            thread = threading.Thread(target=self._read, args=(name, pause))
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._stack.close()

    def _hold(self, uri: str) -> None:
        """Read a part of a dataset and keep it."""
        stream = self._stack.enter_context(splitarrow.open(uri))
        self._stack.push(lambda *_: held.clear() is not None)
        held = [next(iter(stream))]

    def _read(self, name: str, pause: float) -> None:
        began = time.monotonic()
        while not self._stopped.is_set():
            with splitarrow.open(self._server.uri(name, "tcp")) as stream, suppress(RemoteError):
                for _ in stream:
                    seconds = time.monotonic() - began
                    if self._stopped.wait(pause * (2 + np.sin(seconds * (1 + pause * 50)))):
                        return


def make_table(rows: int) -> pa.Table:
    random = np.random.default_rng(7)
    return pa.table(
        {"time": pa.array(np.arange(rows)), "value": pa.array(random.standard_normal(rows))}
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[splitarrow.Server]:
    folder = tmp_path_factory.mktemp("status")
    for name, rows in (("trips", 4_000_000), ("flights", 6_000_000)):
        table = make_table(rows)
        with (
            pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file,
            ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table, 20_000)
    store = VersionStore(folder / "weather")
    for job in ("monday", "tuesday", "wednesday"):
        publish(store, job, make_table(120_000))
    datasets = {
        "trips/2026": folder / "trips.arrow",
        "flights": folder / "flights.arrow",
        "sensors": make_table(1_000_000),
        "weather": folder / "weather",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "_SAMPLE_SECONDS", 0.1)
        with splitarrow.serve(
            datasets,
            listen=["tcp://127.0.0.1:0", f"shm://{folder}/s"],
            http="http://127.0.0.1:0",
            batch_rows=20_000,
            max_leased="8GiB",
        ) as server:
            yield server


@pytest.fixture(scope="module")
def load(server: splitarrow.Server) -> Iterator[Load]:
    with Load(server) as load:
        wait_until(lambda: len(load.history.total()) >= POINTS)
        yield load


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_is_readable(
    browser: Browser,
    server: splitarrow.Server,
    load: Load,
    scheme: Any,
    size: str,
    tmp_path: Path,
) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    messages: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("request", lambda request: requested.append(request.url))
    history = load.history
    wait_until(lambda: min(history.total()[-1], history.rates("trips/2026")[-1]) > 0)
    page.goto(f"{server.http_uri}/")
    page.get_by_text("Running streams").wait_for()
    assert messages == []  # what breaks the policy on contents is logged
    assert {url for url in requested if not url.startswith(f"{server.http_uri}/")} == set()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(level) for level in re.findall(r"\d+", ground)]
    assert max(levels) < 64 if scheme == "dark" else min(levels) > 192
    assert page.locator("path.line").count() >= 3
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    page.screenshot(path=folder / f"status-{scheme}-{size}.png", full_page=True)
    page.get_by_text("All settings").click()
    assert page.get_by_text("max_connections", exact=True).is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "settings.png", full_page=True)
    page.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_of_a_dataset_is_readable(
    browser: Browser, server: splitarrow.Server, scheme: Any, size: str, tmp_path: Path
) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(f"{server.http_uri}/?refresh=off")
    page.get_by_role("link", name="weather").click()
    page.get_by_text("First rows").wait_for()
    assert messages == []
    assert page.locator(".scroll tbody tr").count() == 100
    assert page.locator("td[data-label=Minimum]").first.inner_text() == "0"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5
    page.screenshot(path=tmp_path / f"dataset-{scheme}-{size}.png", full_page=True)
    page.close()


def test_long_names_fit_on_a_phone(browser: Browser) -> None:
    """The recent refusals have the name of the dataset, which may be long and without spaces."""
    name = "trips-of-yellow-taxis-in-2026/partitioned_by_pickup_location_and_hour"
    width, height = SIZES["phone"]
    with splitarrow.serve({name: make_table(100)}, http="http://127.0.0.1:0") as server:
        for _ in range(1000):
            server._daemon.refusals.record_connection("tcp+tls")
        with pytest.raises(RemoteError):
            splitarrow.open(server.uri(name), columns=["nothing"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(f"{server.http_uri}/")
        assert page.locator(".compact small").inner_text() == name
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def test_a_stream_is_cancelled_with_the_button(
    page: Page, server: splitarrow.Server, tmp_path: Path
) -> None:
    with splitarrow.open(server.uri("flights", "tcp")) as stream:
        next(iter(stream))
        running = [one for one in server._daemon.streams if one.dataset == "flights"]
        number = running[-1].number
        page.goto(f"{server.http_uri}/?refresh=off")
        page.get_by_label(f"Cancel stream {number} of flights").click()
        page.get_by_text("Cancel this stream?").wait_for()
        page.screenshot(path=tmp_path / "cancel.png")
        page.get_by_text("Keep it").click()
        page.get_by_label(f"Cancel stream {number} of flights").click()
        page.get_by_role("button", name="Cancel the stream").click()
        page.get_by_text("The stream was cancelled.").wait_for()
        with pytest.raises(SplitArrowError):
            stream.read_all()
    wait_until(lambda: number not in [one.number for one in server._daemon.streams])
    page.goto(f"{server.http_uri}/")
    assert page.get_by_label(f"Cancel stream {number} of flights").count() == 0


def test_updates_can_be_paused(page: Page, server: splitarrow.Server) -> None:
    page.goto(f"{server.http_uri}/")
    assert page.locator("meta[http-equiv=refresh]").count() == 1
    page.get_by_text("Pause updates").click()
    page.get_by_text("Resume updates").wait_for()
    assert page.locator("meta[http-equiv=refresh]").count() == 0


def test_the_browser_asks_for_the_token(browser: Browser, tmp_path: Path) -> None:
    token = "a-token-for-the-browser"
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[tokens]]\nname = "ops"\ntoken = "{token}"\ndatasets = ["*"]\n')
    path.chmod(0o600)
    data = {"data": pa.table({"n": [1]})}
    with splitarrow.serve(data, http="http://127.0.0.1:0", token_file=path) as server:
        uri = f"{server.http_uri}/"
        for password, status in ((token, 200), ("wrong-token-for-it", 401)):
            context = browser.new_context(
                http_credentials={"username": "ops", "password": password}
            )
            response = context.new_page().goto(uri)
            assert response is not None
            assert response.status == status
            context.close()


def test_another_site_cannot_read_or_frame_the_page(page: Page, server: splitarrow.Server) -> None:
    with splitarrow.serve({"data": pa.table({"n": [1]})}, http="http://127.0.0.1:0") as other:
        page.goto(f"{other.http_uri}/nothing")
        script = "uri => fetch(uri).then(() => 'read', () => 'refused')"
        assert page.evaluate(script, f"{server.http_uri}/v1/streams") == "refused"
