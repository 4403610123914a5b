"""Descriptions that a client keeps: those of the last fixed versions that were read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from splitarrow.client.dataset.requests import Descriptions
from splitarrow.protocol.request import Request

KEPT = 8


@pytest.fixture
def asked() -> list[Request]:
    """The requests that were described."""
    return []


@pytest.fixture
def describe(asked: list[Request]) -> Callable[[Request], str]:
    def describe(request: Request) -> str:
        asked.append(request)
        return f"{request.dataset} {request.version}"

    return describe


def test_only_a_fixed_version_is_described_once(
    asked: list[Request], describe: Callable[[Request], str]
) -> None:
    known: Descriptions[str] = Descriptions()
    fixed, current = Request("d", version="7"), Request("d")
    for _ in range(2):
        assert known.get(fixed, describe) == "d 7"
        assert known.get(current, describe) == "d None"
    assert asked == [fixed, current, current]


def test_the_version_that_was_read_longest_ago_is_forgotten(
    asked: list[Request], describe: Callable[[Request], str]
) -> None:
    known: Descriptions[str] = Descriptions()
    versions = [Request("d", version=str(number)) for number in range(KEPT + 1)]
    for request in versions[:KEPT]:
        known.get(request, describe)
    known.get(versions[0], describe)
    known.get(versions[KEPT], describe)  # takes the place of version 1
    assert asked == versions
    for request in (versions[0], *versions[2:]):
        known.get(request, describe)
    assert asked == versions
    known.get(versions[1], describe)
    assert asked == [*versions, versions[1]]


def test_a_failure_is_not_kept(describe: Callable[[Request], str]) -> None:
    def fail(request: Request) -> str:
        raise ZeroDivisionError

    known: Descriptions[str] = Descriptions()
    with pytest.raises(ZeroDivisionError):
        known.get(Request("d", version="7"), fail)
    assert known.get(Request("d", version="7"), describe) == "d 7"
