"""Building requests to a control plane from the arguments of a read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from ...errors import InvalidRequestError, UsageError
from ...protocol.request import SIGNED_PREFIX, Request
from ..rpc.info import Endpoint


def check_name(name: str) -> str:
    """Return `name` if a dataset can have it.

    Raises
    ------
    UsageError
        If it is empty, contains a null character, or is not Unicode text.
    """
    return build_request(name).dataset


def build_request(name: str, **selection: Any) -> Request:
    """Return a request for a dataset; `selection` holds further fields of `Request`.

    Raises
    ------
    UsageError
        If a field is invalid.
    """
    try:
        return Request(name, **selection)
    except InvalidRequestError as error:
        raise UsageError(f"cannot request {name!r}: {error.message}") from None


def encode_command(request: Request) -> bytes:
    """Return the command of a flight descriptor for a request: a JSON object.

    Examples
    --------
    >>> encode_command(Request("flights", limit=3))
    b'{"dataset": "flights", "limit": 3}'
    """
    fields = {name: value for name, value in asdict(request).items() if value is not None}
    return json.dumps(fields, ensure_ascii=False).encode()


def pin_version(endpoint: Endpoint, version: str) -> Endpoint:
    """Return the endpoint with a version in its ticket.

    A server refuses the ticket once the dataset has changed, so that a read never mixes parts of
    two versions. Signed tickets already contain the version.
    """
    if not version or endpoint.ticket.startswith(SIGNED_PREFIX):
        return endpoint
    try:
        request = Request.parse(endpoint.ticket)
    except InvalidRequestError:
        return endpoint  # The server is not splitarrow, and its tickets are opaque.
    return replace(endpoint, ticket=replace(request, version=version).ticket())


def select_span(endpoint: Endpoint, request: Request, version: str) -> Endpoint | None:
    """Return an endpoint that delivers some record batches or rows of one that is known.

    A reader of many parts then requests no ticket for each.

    Parameters
    ----------
    endpoint : Endpoint
        The endpoint of the shard, for the request without these and its limit.
    request : Request
        The request.
    version : str
        The version of the dataset at the server; empty if unknown.

    Returns
    -------
    Endpoint or None
        None if the server has to issue the ticket.
    """
    if not version or endpoint.ticket.startswith(SIGNED_PREFIX):
        return None
    try:
        part = Request.parse(endpoint.ticket)
    except InvalidRequestError:
        return None  # The server is not splitarrow, and its tickets are opaque.
    part = replace(
        part,
        version=version,
        batches=request.batches,
        rows=request.rows,
        limit=request.limit,
    )
    return replace(endpoint, ticket=part.ticket())
