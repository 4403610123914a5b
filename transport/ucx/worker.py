"""A worker of UCX: the queue of one connection, or of one listener, and what wakes it."""

from __future__ import annotations

import os
import resource
import select
import threading
from collections import deque
from typing import Any

from ...errors import LimitError, TransportError
from . import timers
from .context import context
from .library import (
    ERR_BUSY,
    IN_PROGRESS,
    OK,
    describe,
    ffi,
    status_of,
    ucp,
)

_FIELD_THREAD_MODE, _FIELD_EVENTS, _FIELD_FLAGS = 1 << 0, 1 << 2, 1 << 6
_THREAD_SERIALIZED = 1
_WAKEUPS = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 10 | 1 << 11
"""Remote reads, tagged sends and receives; what leaves and what comes."""
_IGNORE_REQUEST_LEAK = 1
_AM_FIELDS = 1 << 0 | 1 << 2 | 1 << 3  # id, callback, argument
_ATTR_RNDV = 1 << 17
_DESCRIPTORS = 64
_MOST_LAST_STEPS = 1000
_LEAST_PAUSE, _MOST_PAUSE = 20_000, 2_000_000
METADATA_ID = 0
"""The id of active messages that are metadata messages."""


class Bell:
    """A descriptor that is readable when the worker has work, or when the bell rings.

    Shared memory does not tell when there is room again: with messages that wait for it, UCX
    will not let the worker sleep. The bell then rings after a while, and later each time.

    Parameters
    ----------
    events : int
        The worker's descriptor.
    """

    def __init__(self, events: int) -> None:
        self._set = False
        self._pause = _LEAST_PAUSE
        self._timer = timers.create()
        try:
            self._epoll = select.epoll()
        except OSError:
            os.close(self._timer)
            raise
        self._epoll.register(self._timer, select.EPOLLIN)
        self._epoll.register(events, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor; -1 once closed."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def ring(self, delay: int = 1) -> None:
        """Make the descriptor readable, in `delay` nanoseconds; from any thread."""
        self._set = True
        if self._timer >= 0:
            timers.start(self._timer, delay)

    def ring_later(self) -> None:
        """Make it readable after a pause, which doubles until `moved`."""
        self.ring(self._pause)
        self._pause = min(2 * self._pause, _MOST_PAUSE)

    def moved(self) -> None:
        """Note that there was progress: the next pause is short again."""
        self._pause = _LEAST_PAUSE

    def silence(self) -> None:
        """Take the ringing back."""
        if self._set:
            self._set = False
            timers.start(self._timer, 0)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        timer, self._timer = self._timer, -1
        if timer >= 0:
            os.close(timer)
            self._epoll.close()


class Events:
    """What the library's callbacks noted while the worker made progress."""

    __slots__ = ("error", "limit", "metadata", "refused", "rendezvous", "requests")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The largest active message that is taken, in bytes."""
        self.metadata: deque[bytes] = deque()
        """Active messages that came whole."""
        self.rendezvous: deque[tuple[Any, int]] = deque()
        """Active messages that wait to be fetched: their descriptor and their size in bytes."""
        self.requests: deque[Any] = deque()
        """Clients that wait at a listener."""
        self.error = OK
        """Why the endpoint failed; OK if it has not."""
        self.refused: LimitError | None = None
        """Why an active message was not taken."""


@ffi.callback("ucp_am_recv_callback_t")
def _on_metadata(
    arg: Any, header: Any, header_length: int, data: Any, length: int, param: Any
) -> int:
    events: Events = ffi.from_handle(arg)
    if length > events.limit:
        if events.refused is None:
            events.refused = LimitError(
                f"a metadata message of {length} bytes; the limit is {events.limit}"
            )
        return OK
    if param.recv_attr & _ATTR_RNDV:
        events.rendezvous.append((data, length))
        return IN_PROGRESS
    events.metadata.append(ffi.buffer(data, length)[:] if length else b"")
    return OK


@ffi.callback("ucp_err_handler_cb_t")
def on_error(arg: Any, endpoint: Any, status: int) -> None:
    """Note why an endpoint failed."""
    events: Events = ffi.from_handle(arg)
    if events.error == OK:
        events.error = status


@ffi.callback("ucp_listener_conn_callback_t")
def on_request(request: Any, arg: Any) -> None:
    """Note that a client waits."""
    events: Events = ffi.from_handle(arg)
    events.requests.append(request)


def _check_descriptors() -> None:
    """Refuse a worker that there may not be descriptors for: the library does not survive it."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and len(os.listdir("/proc/self/fd")) + _DESCRIPTORS > most:
        raise TransportError(
            f"UCX has no room for another connection: of {most} descriptors fewer than "
            f"{_DESCRIPTORS} are left (ulimit -n raises the limit)"
        )


class Worker:
    """A worker. Its methods are called with `lock` held, by any thread.

    Parameters
    ----------
    limit : int
        The largest active message that is taken, in bytes.
    plain : bool
        Whether it is for a server that is not known to have the settings that this side has.
    loopback : bool
        Whether it is for the loopback alone.

    Raises
    ------
    TransportError
        If there are no descriptors or memory for it.
    """

    def __init__(self, limit: int, *, plain: bool = False, loopback: bool = False) -> None:
        _check_descriptors()
        self.lock = threading.RLock()
        self.context = context(plain=plain, loopback=loopback)
        """The context that it belongs to; memory for its peers is registered there."""
        self.events = Events(limit)
        self.argument = ffi.new_handle(self.events)
        """What callbacks get, to find `events`."""
        params = ffi.new("ucp_worker_params_t *")
        params.field_mask = _FIELD_THREAD_MODE | _FIELD_EVENTS | _FIELD_FLAGS
        params.thread_mode = _THREAD_SERIALIZED
        params.events = _WAKEUPS
        params.flags = _IGNORE_REQUEST_LEAK
        made = ffi.new("ucp_worker_h *")
        status = ucp.ucp_worker_create(self.context, params, made)
        if status != OK:
            raise TransportError(f"UCX has no room for another connection: {describe(status)}")
        self.handle: Any = made[0]
        """The library's handle; None once destroyed."""
        try:
            descriptor = ffi.new("int *")
            status = ucp.ucp_worker_get_efd(self.handle, descriptor)
            if status != OK:
                raise TransportError(f"UCX offers no events: {describe(status)}")
            self.descriptor: int = descriptor[0]
            """Readable when there is work, after `arm`."""
            self._handle_metadata()
        except BaseException:
            self.destroy()
            raise

    def _handle_metadata(self) -> None:
        handler = ffi.new("ucp_am_handler_param_t *")
        handler.field_mask = _AM_FIELDS
        handler.id = METADATA_ID
        handler.cb = _on_metadata
        handler.arg = self.argument
        status = ucp.ucp_worker_set_am_recv_handler(self.handle, handler)
        if status != OK:
            raise TransportError(f"UCX takes no active messages: {describe(status)}")

    def progress(self) -> bool:
        """Do some of the work that waits; tell whether there was any."""
        return bool(ucp.ucp_worker_progress(self.handle))

    def arm(self) -> bool:
        """Make the descriptor tell of what comes; False: there is work already."""
        status = ucp.ucp_worker_arm(self.handle)
        if status == ERR_BUSY:
            return False
        if status != OK:
            raise TransportError(f"UCX cannot wait: {describe(status)}")
        return True

    def close_endpoint(self, endpoint: Any) -> None:
        """Close an endpoint at once: what is under way is cancelled, the peer is told."""
        param = ffi.new("ucp_request_param_t *")
        param.op_attr_mask = 1 << 4
        param.flags = 1
        request = ucp.ucp_ep_close_nbx(endpoint, param)
        if status_of(request) == IN_PROGRESS:
            for _ in range(1000):
                if ucp.ucp_request_check_status(request) != IN_PROGRESS:
                    break
                self.progress()
            ucp.ucp_request_free(request)

    def cancel(self, request: Any) -> None:
        """Give a request up, and release it."""
        ucp.ucp_request_cancel(self.handle, request)
        for _ in range(100):
            if ucp.ucp_request_check_status(request) != IN_PROGRESS:
                break
            self.progress()
        ucp.ucp_request_free(request)

    def destroy(self) -> None:
        """Give everything back. Idempotent."""
        if self.handle is not None:
            # What the library still has to do for endpoints that were closed must be done:
            # a worker that is destroyed with such work left may free it twice.
            for _ in range(_MOST_LAST_STEPS):
                if not self.progress():
                    break
        handle, self.handle = self.handle, None
        if handle is not None:
            for data, _ in self.events.rendezvous:
                ucp.ucp_am_data_release(handle, data)
            self.events.rendezvous.clear()
            ucp.ucp_worker_destroy(handle)
