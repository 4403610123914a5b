"""Refused requests, calls and connections: counted, and the recent ones by their reason."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass

from .metrics import Metrics

_MAX_KINDS = 50
"""The number of different recent refusals that are kept."""
_REASONS = frozenset(
    (
        "failed_precondition",
        "invalid_argument",
        "not_found",
        "permission_denied",
        "resource_exhausted",
        "unauthenticated",
        "unavailable",
        "unimplemented",
    )
)
"""The status codes of requests that a server refuses. The others mean that it failed."""
CONNECTIONS = "connections"
"""The reason of a connection that was refused because there were too many."""


@dataclass(slots=True)
class Refusals:
    """Refusals for the same reason."""

    plane: str
    """``data``, ``control`` or ``http``."""
    reason: str
    """The status code in lower case, or `CONNECTIONS`."""
    dataset: str | None
    """The dataset, if it exists."""
    transport: str
    """The scheme of the listener."""
    count: int
    """How many there were."""
    last: float
    """The time of the last one, in seconds since 1970."""


class RefusalLog:
    """Counts refusals in the metrics, and keeps the recent ones. Any thread may use it.

    It keeps nothing that a client has sent: no ticket, no filter and no name of a dataset that
    does not exist.

    Parameters
    ----------
    metrics : Metrics
        The metrics.
    datasets : container of str
        The names of the datasets that exist.
    """

    def __init__(self, metrics: Metrics, datasets: Container[str]) -> None:
        self._metrics = metrics
        self._datasets = datasets
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[str, str, str | None, str], Refusals] = OrderedDict()

    def record(self, code: str, plane: str, dataset: str | None, transport: str) -> None:
        """Record a request or call that ended with a status code, if it was refused.

        Parameters
        ----------
        code : str
            A gRPC status name.
        plane : {"data", "control", "http"}
            Where it was refused.
        dataset : str or None
            The dataset that was requested, if that is known.
        transport : str
            The scheme of the listener.
        """
        reason = code.lower()
        if reason in _REASONS:
            self._metrics.refused_requests[plane, reason] += 1
            is_known = dataset is not None and dataset in self._datasets
            self._keep(plane, reason, dataset if is_known else None, transport)

    def record_connection(self, transport: str) -> None:
        """Record a connection that was refused because there were too many."""
        self._metrics.refused += 1
        self._keep("data", CONNECTIONS, None, transport)

    def recent(self) -> list[Refusals]:
        """Return the recent refusals, the last one first."""
        with self._lock:
            return list(reversed(self._recent.values()))

    def _keep(self, plane: str, reason: str, dataset: str | None, transport: str) -> None:
        key, now = (plane, reason, dataset, transport), time.time()
        with self._lock:
            known = self._recent.pop(key, None)
            if known is None:
                self._recent[key] = Refusals(plane, reason, dataset, transport, 1, now)
                if len(self._recent) > _MAX_KINDS:
                    self._recent.popitem(last=False)
            else:
                # Replaced, because a reader on another thread may have the old one.
                self._recent[key] = Refusals(*key, known.count + 1, now)
