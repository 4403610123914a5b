"""The choice of a compression from measurements of the link. It reads no clock.

Compression pays if the link is slow: sending fewer bytes must save more time than compressing
takes. The choice needs three measurements: the rate at which the connection takes bytes, and for
each codec the ratio and the speed with which it compresses a sample of the data. If the estimate is
in favor of a codec, a trial follows. The codec stays only if data gets through faster than before,
because an estimate does not know how fast the reader decompresses.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_BYTES = 4 << 20
"""The data after which a measurement counts, in bytes before compression."""
WINDOW_SECONDS = 0.25
"""The time after which a measurement counts, even of less data."""
_MIN_GAIN = 1.25
"""How many times faster an estimate must be for a trial."""
_MIN_PROVEN_GAIN = 1.05
"""How many times faster a trial must be for the codec to stay."""
_FASTEST_LINK = 1e9
"""The rate in bytes per second at which no codec can pay, so that no sample is taken."""
_FIRST_DWELL = 1
"""The windows that pass before the choice is made again."""
_LONGEST_DWELL = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """What a codec made of a sample of the data."""

    codec: str
    """The codec."""
    ratio: float
    """The compressed size divided by the size before."""
    bytes_per_second: float
    """The bytes before compression that it takes in a second."""


class CompressionChoice:
    """Chooses the compression of one stream, again and again.

    The caller calls `record` after each group of messages. If `wants_samples` is true, it passes
    samples to `choose`.
    """

    def __init__(self) -> None:
        self.codec: str | None = None
        """The codec to use now; None does not compress."""
        self.wants_samples = False
        """Whether a decision needs samples of the data."""
        self._dwell = _FIRST_DWELL
        self._windows = 0
        self._is_trial = False
        self._sample: Sample | None = None
        self._plain_rate = 0.0
        self._link_rate = 0.0
        self._clear()

    def _clear(self) -> None:
        self._raw_bytes = self._sent_bytes = 0
        self._send_seconds = self._seconds = 0.0

    def record(self, raw_bytes: int, sent_bytes: int, send_seconds: float, seconds: float) -> None:
        """Record a group of messages that was sent.

        Parameters
        ----------
        raw_bytes : int
            The size of the bodies before compression.
        sent_bytes : int
            Their size on the network.
        send_seconds : float
            The time in which the connection took them.
        seconds : float
            The time since the previous call: reading, compressing and sending.
        """
        self._raw_bytes += raw_bytes
        self._sent_bytes += sent_bytes
        self._send_seconds += send_seconds
        self._seconds += seconds
        is_full = self._raw_bytes >= WINDOW_BYTES or self._seconds >= WINDOW_SECONDS
        if is_full and self._raw_bytes:
            self._end_window()

    def _end_window(self) -> None:
        rate = self._raw_bytes / max(self._seconds, 1e-9)
        self._link_rate = self._sent_bytes / max(self._send_seconds, 1e-9)
        self._clear()
        self._windows += 1
        if self.codec is None:
            self._plain_rate = rate
            is_slow = self._link_rate < _FASTEST_LINK
            self.wants_samples = is_slow and self._windows >= self._dwell
        elif self._is_trial:
            if self._windows == 1:
                return  # what was buffered before is in it
            self._is_trial = False
            if rate < _MIN_PROVEN_GAIN * self._plain_rate:
                self._stop()
        elif self._windows >= self._dwell:
            self._windows = 0
            if self._sample is not None and self._estimate_gain(self._sample) < 1:
                self._stop()  # the link has become faster

    def _stop(self) -> None:
        self.codec, self._windows = None, 0
        self._dwell = min(2 * self._dwell, _LONGEST_DWELL)

    def _estimate_gain(self, sample: Sample) -> float:
        """Return how many times faster data would get through with a codec."""
        plain = 1 / max(self._link_rate, 1.0)
        return plain / (1 / max(sample.bytes_per_second, 1.0) + sample.ratio * plain)

    def choose(self, samples: list[Sample]) -> None:
        """Decide from samples of the data whether to try a codec.

        Parameters
        ----------
        samples : list of Sample
            A sample for each codec. Without any, nothing is compressed for a while.
        """
        self.wants_samples = False
        self._windows = 0
        best = max(samples, key=self._estimate_gain, default=None)
        if best is not None and self._estimate_gain(best) > _MIN_GAIN:
            self.codec, self._sample, self._is_trial = best.codec, best, True
        else:
            self._dwell = min(2 * self._dwell, _LONGEST_DWELL)
