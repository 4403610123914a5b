"""Where commands read datasets of servers: control planes, and the URIs of data streams."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import UriError, UsageError
from .connection import open_client
from .early_checks import check_control_plane, connect_first
from .terminal import is_terminal

Source = tuple[str, int | None, Callable[[], Any]]
"""The name of a dataset, its rows if they are known, and a function that opens its stream."""


@contextmanager
def control_source(
    uri: str, name: str, token: str | None, options: dict[str, Any], *, quiet: bool
) -> Generator[Source]:
    """Connect to a control plane that locates the dataset."""
    check_control_plane(uri, options["connect_timeout"])
    with open_client(uri, token, options["connect_timeout"]) as client:
        shows_progress = not quiet and is_terminal(sys.stderr)
        rows = client.info(name).rows if shows_progress else None
        yield name, rows, partial(client.read, name, **options)


@contextmanager
def query_source(
    uri: str, query: str, token: str | None, options: dict[str, Any]
) -> Generator[Source]:
    """Run a query over the datasets of a control plane."""
    with open_client(uri, token, options["connect_timeout"]) as client:
        yield "query", None, partial(client.read, sql=query, **options)


@contextmanager
def data_source(uris: list[str], ticket: str | None, options: dict[str, Any]) -> Generator[Source]:
    """Read from the URI of a dataset, or from a pair of URIs."""
    with connect_first(uris, ticket, options["connect_timeout"]):
        from ..client.open import open as open_stream

        yield _dataset_name(uris, ticket), None, partial(open_stream, uris, ticket, **options)


def _dataset_name(uris: list[str], ticket: str | None) -> str:
    """Return the name of the dataset that a ticket requests, after checking the URIs.

    Raises `UriError` if a URI is malformed or has an unknown scheme, or there is no ticket.
    """
    from ..client.uris import complete_uri, read_dataset_name

    parsed = [complete_uri(uri) for uri in uris]
    for uri in parsed:
        uri.require_want_data()
    own_ticket = next((uri.ticket for uri in parsed if uri.ticket is not None), None)
    if own_ticket is not None and ticket is not None:
        raise UsageError("the URI already has a ticket; leave --ticket out")
    chosen = (ticket or "").encode() if own_ticket is None else own_ticket
    if not chosen:
        raise UriError(
            f"{parsed[0].redacted()} has no ticket: add &ticket=NAME to it, in quotes, "
            "or give --ticket NAME"
        )
    return read_dataset_name(chosen)
