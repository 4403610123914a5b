"""A browser of the machine, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def running_browser() -> Generator[Browser]:
    """Run Chromium until the context ends; skip the test if there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed, such as by apt")
    with sync_playwright() as playwright:
        # Chromium cannot use its sandbox as root or in a container.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
