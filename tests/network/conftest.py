"""Fixtures of the tests over an emulated link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from network.link import Link, LinkUnavailableError

MakeLink = Callable[..., Link]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.network)


@pytest.fixture
def make_link() -> Iterator[MakeLink]:
    """Make links with the arguments of `Link`; they end with the test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Link:
            try:
                return stack.enter_context(Link(**settings))
            except LinkUnavailableError as reason:
                pytest.skip(str(reason))

        yield make


@pytest.fixture
def link(make_link: MakeLink) -> Link:
    """A link of 1 Gbit/s without delay, which tests change with `Link.set`."""
    return make_link()
