"""Counting the rows of a dataset's record batches at one server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request

if TYPE_CHECKING:
    from .channel import FlightChannel

RowCounts = dict[int, list[int]]
"""For each shard, the rows of its record batches."""


def count_rows(channel: FlightChannel, request: Request, timeout: float) -> RowCounts:
    """Count the rows of each record batch of a dataset.

    Parameters
    ----------
    channel : FlightChannel
        The channel to the server.
    request : Request
        The dataset, its version and the filter.
    timeout : float
        The time limit in seconds.

    Returns
    -------
    dict of int to list of int
        The rows of the record batches of each shard, by the index of the shard at the server.

    Raises
    ------
    ProtocolError
        If the response is malformed.
    RemoteError
        If the server refuses.
    """
    action = flight.Action(type="count", body=request.ticket())
    message = action.SerializeToString()
    name = request.dataset
    results = channel.call_stream("DoAction", message, dataset=name, timeout=timeout)
    return dict(_parse_shard(flight.Result.FromString(result).body, name) for result in results)


def _parse_shard(body: bytes, name: str) -> tuple[int, list[int]]:
    try:
        values: Any = json.loads(body)
        shard, rows = values["shard"], values["rows"]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise ProtocolError("the server sent malformed row counts", stream=name) from None
    if not (isinstance(rows, list) and all(map(_is_count, [shard, *rows]))):
        raise ProtocolError("the server sent malformed row counts", stream=name)
    return shard, rows


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
