"""How a dataset is read: what is asked for, in the words of the control plane."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ..errors import InvalidRequestError, UsageError
from ..protocol.request import SIGNED_PREFIX, Request
from ..transport.certificates import TlsOptions
from .calls import Caller
from .described import DatasetInfo, Endpoint
from .merging import ranges
from .reaching import Way
from .reader import ReadOptions


@dataclass(frozen=True, slots=True)
class Reading:
    """How a dataset is read, whatever it is made of."""

    options: ReadOptions
    """How to read a stream."""
    transport: str
    """The scheme to take."""
    budget: float
    """The longest time to connect to one of several locations, in seconds."""
    resume_attempts: int
    """How often to try again."""

    def way(self, caller: Caller, tls: TlsOptions | None) -> Way:
        """Return how the endpoints of one server are reached."""
        return Way(caller, self.options, self.transport, self.budget, tls)


def chosen_parts(info: DatasetInfo, shards: frozenset[int] | None) -> list[int]:
    """Return the places of the endpoints that are wanted.

    Raises
    ------
    UsageError
        If there is one that the dataset has not.
    """
    places = {
        place if endpoint.ordinal is None else endpoint.ordinal: place
        for place, endpoint in enumerate(info.endpoints)
    }
    if shards is None:
        return list(places.values())
    absent = sorted(shards - set(places))
    if absent:
        raise UsageError(f"{info.name!r} has no shard {ranges(absent)}", stream=info.name)
    return [places[shard] for shard in sorted(shards)]


def checked_name(name: str) -> str:
    """Return the name of a dataset; raise `UsageError` if it can be none."""
    try:
        Request(name)
    except InvalidRequestError as error:
        raise UsageError(error.message.replace("the ticket names", "the name is of")) from None
    return name


def names(columns: Iterable[str]) -> list[str]:
    """Return the names of columns; raise `UsageError` for a single text."""
    if isinstance(columns, str):
        raise UsageError("columns is a list of names, not one")
    return list(columns)


def pinned(endpoint: Endpoint, version: str) -> Endpoint:
    """Return the endpoint with the version in its ticket, so that no parts of two are mixed."""
    if not version or endpoint.ticket.startswith(SIGNED_PREFIX):
        return endpoint
    try:
        request = Request.parse(endpoint.ticket)
    except InvalidRequestError:
        return endpoint  # another server's
    ticket = replace(request, version=version).ticket()
    return replace(endpoint, ticket=ticket)


def substrait(name: str, schema: pa.Schema, expression: Any) -> str:
    """Return a filter as servers take it.

    Raises
    ------
    UsageError
        If it is no expression, or does not suit the schema.
    """
    if not hasattr(expression, "to_substrait"):
        raise UsageError("filter is no expression of pyarrow.compute")
    try:
        plan = expression.to_substrait(schema)
    except (pa.ArrowException, ValueError, KeyError, NotImplementedError) as error:
        raise UsageError(f"the filter does not suit {name!r}: {error}") from None
    return base64.urlsafe_b64encode(memoryview(plan)).rstrip(b"=").decode()
