"""Fixtures and settings that all tests share."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["helpers.batteries", "helpers.cluster", "helpers.daemons", "helpers.storage"]

pytest.register_assert_rewrite("helpers")

# The machine may be slow or busy, so no example has a deadline.
settings.register_profile(
    "splitarrow", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("splitarrow")

# Tests start hundreds of processes that import NumPy, whose library of linear algebra would start
# a thread for each core. No test needs these threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests that use one of these fixtures are slow. Those of one resource run on one worker.
SLOW_FIXTURES = {"spark", "s3_server"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
            # Two sessions of Spark share its tests by the names of their files.
            half = "2" if fixture == "spark" and item.path.stem > "test_k" else ""
            item.add_marker(pytest.mark.xdist_group(fixture + half))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Keep the tests that failed by the names that select them, for ``--last-failed``.

    pytest-xdist appends the group of a test to its name.
    """
    yield
    cache = getattr(session.config, "cache", None)  # absent with -p no:cacheprovider
    if cache is not None and not hasattr(session.config, "workerinput"):
        failed = cast("dict[str, bool]", cache.get("cache/lastfailed", {}))
        names = {re.sub(r"@\w+$", "", name): True for name in failed}
        cache.set("cache/lastfailed", names)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length: the name of a test is part of its environment."""
    if isinstance(val, (str, bytes)) and len(val) > 100:
        return f"{argname} of {len(val)}"
    return None


ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "testdata"


def _data_folder(variable: str, default: Path) -> Path:
    """Return the folder that an environment variable names, or the default; skip without it."""
    folder = Path(os.environ.get(variable) or default)
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder}; {variable} may name another folder")
    return folder


@pytest.fixture(scope="session")
def arrow_test_data() -> Path:
    """The folder `data` of apache/arrow-testing."""
    return _data_folder("ARROW_TEST_DATA", SHARED / "arrow-testing" / "data")


@pytest.fixture(scope="session")
def parquet_test_data() -> Path:
    """The root of apache/parquet-testing."""
    return _data_folder("PARQUET_TEST_DATA", SHARED / "parquet-testing")


@pytest.fixture(scope="session")
def vega_test_data() -> Path:
    """The folder `data` of vega/vega-datasets."""
    return _data_folder("VEGA_TEST_DATA", SHARED / "vega-datasets" / "data")
