"""Channels that were open when this process was forked.

gRPC's threads do not exist in a forked process, but the locks that they held do. A new channel can
then wait forever.
"""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Any

_GRPC_THREADS = ("event_engine", "grpc", "lifeguard", "timer")
_SETTLE_SECONDS = 1.0
_TASKS = Path("/proc/self/task")


class OpenChannels:
    """The channels of this process that are open, and whether its parent had any at the fork."""

    def __init__(self) -> None:
        self._channels: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closed: float | None = None
        self.were_open_at_fork = False
        """Whether this process was forked while its parent had an open channel."""

    def add(self, channel: object) -> None:
        """Count a channel until `discard`, or until it is collected."""
        self._channels.add(channel)

    def discard(self, channel: object) -> None:
        """Stop counting a channel, which is closed."""
        self._closed = time.monotonic()
        self._channels.discard(channel)

    def before_fork(self) -> None:
        """Wait a moment for the threads of channels that were closed just now."""
        if self._channels or self._closed is None:
            return
        end = self._closed + _SETTLE_SECONDS
        while time.monotonic() < end and _has_grpc_threads():
            time.sleep(0.001)

    def after_fork(self) -> None:
        """Note whether channels were open. Call it in the child."""
        self.were_open_at_fork |= bool(self._channels)
        self._channels = weakref.WeakSet()


def _has_grpc_threads() -> bool:
    try:
        names = [(task / "comm").read_text() for task in _TASKS.iterdir()]
    except OSError:
        return True  # a thread has just ended
    return any(name.startswith(_GRPC_THREADS) for name in names)


OPEN_CHANNELS = OpenChannels()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=OPEN_CHANNELS.before_fork, after_in_child=OPEN_CHANNELS.after_fork)
