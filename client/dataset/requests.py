"""Requests to a control plane, and the parts of a dataset that they select.

A client keeps the last descriptions of fixed versions, so that random access needs one call.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ...errors import DatasetError, InvalidRequestError, SplitArrowError, StallError, UsageError
from ...protocol.request import SIGNED_PREFIX, Request
from ..arguments import build_request
from ..rpc.info import DatasetInfo, Endpoint


def check_name(name: str) -> str:
    """Return `name` if a dataset can have it; otherwise raise `UsageError`."""
    return build_request(name).dataset


def pin_version(endpoint: Endpoint, version: str, *, current: bool = False) -> Endpoint:
    """Return the endpoint with a version in its ticket, which may have to be the current one.

    A server refuses the ticket once the dataset has changed, so that a read never mixes parts of
    two versions. Signed tickets already contain the version.
    """
    return _change_ticket(endpoint, version, current=current or None) or endpoint


def select_span(
    endpoint: Endpoint, request: Request, version: str, *, across: bool = False
) -> Endpoint | None:
    """Return an endpoint that delivers some record batches or rows of one that is known.

    With `across`, they are those of all shards of its server. A reader of many parts then requests
    no ticket for each. Return None if the server has to issue the ticket. An empty version is
    unknown.
    """
    selected: dict[str, Any] = {"batches": request.batches, "rows": request.rows}
    if across:
        selected["shard"] = None
    return _change_ticket(endpoint, version, limit=request.limit, **selected)


def _change_ticket(endpoint: Endpoint, version: str, **changes: Any) -> Endpoint | None:
    """Return the endpoint with another ticket; None if the ticket cannot be changed."""
    if not version or endpoint.ticket.startswith(SIGNED_PREFIX):
        return None
    try:
        part = Request.parse(endpoint.ticket)
    except InvalidRequestError:
        return None  # The server is not splitarrow, and its tickets are opaque.
    return replace(endpoint, ticket=replace(part, version=version, **changes).ticket())


def check_complete(info: DatasetInfo, server: str) -> None:
    """Raise `DatasetError` if the publication has shards that the server does not have."""
    total, held = info.shards_total or 0, info.shards_held
    if held is not None and held < total:
        raise DatasetError(
            f"{server} has {held} of the {total} shards of {info.name!r}; connect to all of its "
            "daemons, as in 'grpc://node1,node2', or select shards",
            stream=info.name,
        )


_MAX_RANGES = 12


def select_endpoints(info: DatasetInfo, shards: frozenset[int] | None) -> list[int]:
    """Return the indices of the endpoints of all or some shards, in the order of the dataset."""
    indices = list_ordinals(info)
    if shards is None:
        return list(indices.values())
    missing = sorted(shards - set(indices))
    if missing:
        raise UsageError(f"{info.name!r} has no shard {format_ranges(missing)}", stream=info.name)
    return [indices[shard] for shard in sorted(shards)]


def list_ordinals(info: DatasetInfo) -> dict[int, int]:
    """Return the indices of all endpoints by their ordinals, in the order of the dataset.

    The ordinal of an endpoint that has none is its index.
    """
    return {
        index if endpoint.ordinal is None else endpoint.ordinal: index
        for index, endpoint in enumerate(info.endpoints)
    }


def format_ranges(ordinals: Iterable[int]) -> str:
    """Return ordinals as text, with consecutive ones as a range. Long lists are shortened.

    Examples
    --------
    >>> format_ranges([7, 1, 2, 3, 9])
    '1-3, 7, 9'
    """
    ranges: list[list[int]] = []
    for ordinal in sorted(ordinals):
        if ranges and ordinal == ranges[-1][1] + 1:
            ranges[-1][1] = ordinal
        else:
            ranges.append([ordinal, ordinal])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    omitted = len(texts) - _MAX_RANGES
    return ", ".join(texts[:_MAX_RANGES]) + (f" and {omitted} more" if omitted > 0 else "")


_MAX_DESCRIPTIONS = 8
_T = TypeVar("_T")


class Descriptions(Generic[_T]):
    """Keeps the last descriptions of fixed versions, which do not change.

    A reader that reads many parts of one version needs its description only once. Safe for several
    threads.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Request, _T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, request: Request, describe: Callable[[Request], _T]) -> _T:
        """Return the description for a request. It is kept if the request names a version."""
        if request.version is None:
            return describe(request)
        with self._lock:
            known = self._known.get(request)
            if known is not None:
                self._known.move_to_end(request)
                return known
        description = describe(request)
        with self._lock:
            self._known[request] = description
            if len(self._known) > _MAX_DESCRIPTIONS:
                self._known.popitem(last=False)
        return description


_MAX_PLANS = 64
_MAX_PLAN_ENDPOINTS = 256
_MAX_PLAN_SECONDS = 300.0


class KeptPlans:
    """Keeps the last descriptions for as long as their servers allow. Safe for several threads.

    A read that uses one has to let the server confirm that its version is the current one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._plans: OrderedDict[Request, tuple[float, DatasetInfo | None]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, request: Request) -> DatasetInfo | None:
        """Return the description for a request; None if there is none."""
        with self._lock:
            ends, info = self._plans.get(request, (0.0, None))
            return info if self._clock() < ends else None

    def add(self, request: Request, info: DatasetInfo) -> None:
        """Keep a description, unless its tickets cannot be used again."""
        endpoints = info.endpoints
        if not (info.plan_seconds and info.version and 0 < len(endpoints) <= _MAX_PLAN_ENDPOINTS):
            return
        if all(_change_ticket(endpoint, info.version) for endpoint in endpoints):
            self._set(request, info, info.plan_seconds)

    def drop(self, request: Request, error: SplitArrowError) -> None:
        """Drop a description that could not be used; keep none for a while after a stall."""
        self._set(request, None, _MAX_PLAN_SECONDS if isinstance(error, StallError) else 0)

    def _set(self, request: Request, info: DatasetInfo | None, seconds: float) -> None:
        with self._lock:
            now = self._clock()
            ends, known = self._plans.pop(request, (0.0, info))
            if info is not None and known is None and now < ends:
                info, seconds = None, ends - now
            self._plans[request] = now + min(seconds, _MAX_PLAN_SECONDS), info
            if len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)
