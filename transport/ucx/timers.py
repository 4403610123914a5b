"""Timers that have a descriptor (``timerfd``). Python offers them itself from 3.13."""

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
_libc: Any = _ffi.dlopen(None)


def create() -> int:
    """Return the descriptor of a new timer, which is not started. The caller closes it.

    Raises
    ------
    OSError
        If the process has no descriptors left.
    """
    timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(_ffi.errno, os.strerror(_ffi.errno))
    return timer


def start(timer: int, nanoseconds: int) -> None:
    """Make the descriptor readable after a time; 0 stops the timer and makes it unreadable."""
    value = _ffi.new("struct itimerspec *")
    value.it_value.tv_sec, value.it_value.tv_nsec = divmod(nanoseconds, 1_000_000_000)
    _libc.timerfd_settime(timer, 0, value, _ffi.NULL)
