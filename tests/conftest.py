"""Where the test data of other projects lies; a test that needs some asks for its fixture."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Programs that tests interrupt inherit from this process what they do about it; a job in the
# background of a shell ignores it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
