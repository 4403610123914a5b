"""Timers with a descriptor (``timerfd``), which Python itself offers from 3.13 on."""

from __future__ import annotations

import os
import time
from typing import Any

import cffi

_ffi: Any = cffi.FFI()
_ffi.cdef("""
struct timespec { long tv_sec; long tv_nsec; };
struct itimerspec { struct timespec it_interval; struct timespec it_value; };
int timerfd_create(int clock, int flags);
int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old);
""")
_c: Any = _ffi.dlopen(None)


def create() -> int:
    """Return a new timer, which is not set; its descriptor is the caller's to close.

    Raises
    ------
    OSError
        If there are no descriptors left.
    """
    timer = _c.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(_ffi.errno, os.strerror(_ffi.errno))
    return timer


def start(timer: int, nanoseconds: int) -> None:
    """Make the descriptor readable after a time; 0 stops the timer, and forgets that it fired."""
    value = _ffi.new("struct itimerspec *")
    value.it_value.tv_sec, value.it_value.tv_nsec = divmod(nanoseconds, 1_000_000_000)
    _c.timerfd_settime(timer, 0, value, _ffi.NULL)
