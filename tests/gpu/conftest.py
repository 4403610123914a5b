"""Every test of this folder runs on a real device, or on the checking driver in ``driver/``."""

from __future__ import annotations

import pytest

from helpers import cuda


@pytest.fixture(scope="session", autouse=True)
def has_checking_driver() -> bool:
    """Whether the tests run on the checking driver, which this loads if there is no real one."""
    if cuda.has_real_device():
        return False
    try:
        cuda.load_checking_driver()
    except cuda.MissingToolError as error:
        pytest.skip(str(error))
    return True


@pytest.fixture
def checking_driver(has_checking_driver: bool) -> None:
    """What tests use that need the counters or the settings of the checking driver."""
    if not has_checking_driver:
        pytest.skip("this test needs the checking driver, and the host has a device")
