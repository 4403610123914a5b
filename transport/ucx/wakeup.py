"""Descriptors that become readable when a worker has events, or after a time."""

from __future__ import annotations

import os
import select

from . import timers

_MIN_PAUSE, _MAX_PAUSE = 20_000, 2_000_000
"""The pauses of `Wakeup.set_later`, in nanoseconds."""


class Wakeup:
    """A descriptor to wait for: readable when the worker has events, or when it is set.

    UCX lets a worker sleep only if no message of it waits for room in shared memory, because shared
    memory does not report room. A channel with such a message sets the wakeup to a short time and
    tries again. The pause doubles until the worker makes progress.

    Parameters
    ----------
    events : int
        The worker's descriptor. The worker keeps ownership of it.

    Raises
    ------
    OSError
        If the process has no descriptors left.
    """

    def __init__(self, events: int) -> None:
        self._is_set = False
        self._pause = _MIN_PAUSE
        self._timer = timers.create()
        try:
            self._epoll = select.epoll()
        except OSError:
            os.close(self._timer)
            raise
        self._epoll.register(self._timer, select.EPOLLIN)
        self._epoll.register(events, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor, or -1 once closed."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    @property
    def is_set(self) -> bool:
        """Whether the descriptor is readable, or will be after a delay."""
        return self._is_set

    def set(self, delay: int = 1) -> None:
        """Make the descriptor readable in `delay` nanoseconds. Any thread may call this."""
        self._is_set = True
        if self._timer >= 0:
            timers.start(self._timer, delay)

    def set_later(self) -> None:
        """Make the descriptor readable after a pause, which doubles until `reset_pause`."""
        self.set(self._pause)
        self._pause = min(2 * self._pause, _MAX_PAUSE)

    def reset_pause(self) -> None:
        """Make the next pause short again: the worker has made progress."""
        self._pause = _MIN_PAUSE

    def clear(self) -> None:
        """Undo `set`."""
        if self._is_set:
            self._is_set = False
            timers.start(self._timer, 0)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        timer, self._timer = self._timer, -1
        if timer >= 0:
            os.close(timer)
            self._epoll.close()
