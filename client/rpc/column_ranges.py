"""The smallest and largest values of a dataset's columns, as one server knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request

if TYPE_CHECKING:
    from .channel import FlightChannel


@dataclass(frozen=True, slots=True)
class ShardRanges:
    """The ranges of the columns of one shard."""

    rows: int
    """The number of rows."""
    columns: Mapping[str, Mapping[str, Any]]
    """For each column, ``min``, ``max`` and ``nulls`` as a manifest has them. A bound may be
    missing."""


def read_ranges(
    channel: FlightChannel, request: Request, timeout: float = 60.0
) -> dict[int, ShardRanges]:
    """Return the ranges of the columns of a published dataset.

    Parameters
    ----------
    channel : FlightChannel
        The channel to the server.
    request : Request
        The dataset, its version and the columns.
    timeout : float
        The time limit in seconds.

    Returns
    -------
    dict of int to ShardRanges
        The ranges by the index of the shard at the server.

    Raises
    ------
    ProtocolError
        If the response is malformed.
    RemoteError
        If the server refuses: with the code UNIMPLEMENTED if the dataset is not published, or the
        server is an older one.
    """
    message = flight.Action(type="ranges", body=request.ticket()).SerializeToString()
    name = request.dataset
    results = channel.call_stream("DoAction", message, dataset=name, timeout=timeout)
    return dict(_parse_shard(flight.Result.FromString(result).body, name) for result in results)


def _parse_shard(body: bytes, name: str) -> tuple[int, ShardRanges]:
    try:
        values: Any = json.loads(body)
        shard, rows, columns = values["shard"], values["rows"], values["columns"]
        valid = _is_count(shard) and _is_count(rows)
        valid = valid and all(isinstance(column, dict) for column in columns.values())
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        valid, shard, rows, columns = False, 0, 0, {}
    if not valid:
        raise ProtocolError("the server sent malformed column ranges", stream=name)
    return shard, ShardRanges(rows, columns)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
