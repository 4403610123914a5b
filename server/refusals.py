"""What readers learn of errors, and the log of refused requests, calls and connections.

Readers get the name of the dataset, and no path of the server. The log has the paths.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass

from ..errors import (
    ClosedError,
    ConfigError,
    DatasetError,
    ExhaustedError,
    LimitError,
    SplitArrowError,
    UsageError,
    status_name,
)
from .metrics import Metrics

_DESCRIBES_DATA = (DatasetError, ExhaustedError, LimitError)
"""The errors that may contain paths. The others quote the request of the reader."""
_BEFORE, _AFTER = r"(?<![\w./:-])", r"(?=[\s:;,'\")]|$)"
_LOCATION = re.compile(rf"{_BEFORE}(?:[a-z][a-z0-9+.-]*:/)?(?:/[^\s/:;,'\"()]+)*/([^\s/:;,'\"()]+)")
"""An absolute path or a URL. The group is its last segment."""


def describe_for_reader(error: SplitArrowError, dataset: str | None, location: str | None) -> str:
    """Return the text of an error without paths of the server.

    A file in the folder of the dataset keeps its path within the folder, other files keep their
    names. The text names the dataset.

    Examples
    --------
    >>> error = DatasetError("cannot read /data/flights/1.arrow: Input/output error")
    >>> describe_for_reader(error, "flights", "/data/flights")
    "cannot read 1.arrow: Input/output error (dataset 'flights')"
    """
    text = str(error)
    name = repr(dataset or error.stream)
    if isinstance(error, _DESCRIBES_DATA):
        if location and "/" in location:  # a single word may be any word of the text
            root = re.escape(location.rstrip("/"))
            text = re.sub(rf"{_BEFORE}{root}/", "", text)
            text = re.sub(rf"{_BEFORE}(['\"]?){root}\1{_AFTER}", lambda _: f"dataset {name}", text)
        text = _LOCATION.sub(r"\1", text)
    return text if dataset is None or name in text else f"{text} (dataset {name})"


_MAX_TEXT_CHARACTERS = 1000
"""gRPC sends the text in a header. It drops headers over 8 KiB, and the status with them."""


def describe_status(
    error: SplitArrowError, subject: str | None, location: str | None
) -> tuple[str, str]:
    """Return the name of the status code for an error, and its text for the reader.

    The text names the subject, a dataset, but not the location of its data.
    """
    if isinstance(error, ClosedError):
        code = "UNAVAILABLE"
    elif isinstance(error, ConfigError):
        code = "FAILED_PRECONDITION"
    elif isinstance(error, UsageError):
        code = "INVALID_ARGUMENT"
    else:
        code = status_name(error)
    text = describe_for_reader(error, error.stream or subject, location)
    # gRPC never ends a call whose message has half of a surrogate pair, as a name in JSON may.
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > _MAX_TEXT_CHARACTERS:
        text = text[: _MAX_TEXT_CHARACTERS - 1] + "…"
    return code, text


def flatten_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, or the errors in a group and in the groups within it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten_errors(inner)
    else:
        yield error


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
    """

    def __init__(self, metrics: Metrics, datasets: Container[str]) -> None:
        self._metrics = metrics
        self._datasets = datasets
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[str, str, str | None, str], Refusals] = OrderedDict()

    def record(self, code: str, plane: str, dataset: str | None, transport: str) -> None:
        """Record a request or call that ended with a status code, if it was refused."""
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
