"""The rates at which datasets were sent in the last minutes."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from ..metrics import merge_samples
from ..report import ProcessReport

POINTS = 60
"""The number of rates that are kept for each dataset."""
_BYTES = ("sent_bytes", "mapped_bytes")


class History:
    """The bytes per second of each dataset, one rate for each call of `record`.

    Parameters
    ----------
    clock : callable
        Returns the time in seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rates: dict[str, deque[float]] = {}
        self._before: dict[str, float] | None = None
        self._time = 0.0

    def record(self, collect: Callable[[], list[ProcessReport]]) -> None:
        """Record the rates since the last call.

        Parameters
        ----------
        collect : callable
            Returns the reports of all processes.
        """
        totals, now = _sum_bytes(collect()), self._clock()
        with self._lock:
            before, seconds = self._before, now - self._time
            self._before, self._time = totals, now
            if before is None or seconds <= 0:
                return
            for label in totals.keys() | self._rates.keys():
                rates = self._rates.setdefault(label, deque(maxlen=POINTS))
                sent = totals.get(label, 0.0) - before.get(label, 0.0)
                rates.append(max(0.0, sent) / seconds)

    def rates(self, label: str) -> list[float]:
        """Return the rates of a dataset in bytes per second, the oldest first."""
        with self._lock:
            return list(self._rates.get(label, ()))

    def total(self) -> list[float]:
        """Return the rates of all datasets together, the oldest first."""
        with self._lock:
            rates = [[*each] for each in self._rates.values()]
        length = max(map(len, rates), default=0)
        padded = [[0.0] * (length - len(each)) + each for each in rates]
        return [sum(values) for values in zip(*padded, strict=True)]


def _sum_bytes(reports: list[ProcessReport]) -> dict[str, float]:
    totals = Counter[str]()
    for metric, labels, value in merge_samples(report.samples for report in reports):
        if metric.name in _BYTES and isinstance(value, (int, float)):
            totals[labels[0]] += value  # pyright: ignore[reportArgumentType]
    return dict(totals)
