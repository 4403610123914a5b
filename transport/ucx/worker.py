"""A UCX worker: the queues and events of one connection or one listener."""

from __future__ import annotations

import os
import resource
import select
import threading
import time
from collections import deque
from typing import Any

from ...errors import LimitError, TransportError
from .context import Reach, get_context
from .ffi import (
    ERR_BUSY,
    IN_PROGRESS,
    NULL,
    OK,
    REQUEST_FIELD_FLAGS,
    describe,
    ffi,
    get_status,
    libc,
    ucp,
)

METADATA_ID = 0
"""The ID of active messages that carry metadata messages."""
_MIN_PAUSE, _MAX_PAUSE = 20_000, 2_000_000
"""The pauses of `Wakeup.set_later`, in nanoseconds."""
_FIELD_THREAD_MODE, _FIELD_EVENTS, _FIELD_FLAGS = 1, 1 << 2, 1 << 5
_THREAD_SERIALIZED = 1
_EVENTS = 1 | 1 << 2 | 1 << 3 | 1 << 10 | 1 << 11
"""The events that make the descriptor readable: remote reads, tagged sends and receives, and
anything that leaves or arrives."""
_IGNORE_REQUEST_LEAK = 1
_AM_FIELDS = 1 | 1 << 2 | 1 << 3  # ID, callback, argument
_ATTR_RENDEZVOUS = 1 << 17
_CLOSE_FORCED = 1
_MIN_FREE_DESCRIPTORS = 64
_MAX_CLOSE_STEPS = 1000
_MAX_LAST_STEPS = 1000


_open_workers: set[int] = set()
"""The identities of the workers of this process that are not destroyed."""
_lacks_thread = False
"""Whether the library lacks the thread that it had when this process was forked. The library runs
it while there are workers, and does not start it again."""


def _after_fork() -> None:
    global _lacks_thread
    _lacks_thread = _lacks_thread or bool(_open_workers)
    _open_workers.clear()


os.register_at_fork(after_in_child=_after_fork)


def create_timer() -> int:
    """Return the descriptor of a new timer, which is not started. The caller closes it."""
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return timer


def start_timer(timer: int, nanoseconds: int) -> None:
    """Make the descriptor readable after a time; 0 stops the timer and makes it unreadable."""
    value = ffi.new("struct itimerspec *")
    value.it_value.tv_sec, value.it_value.tv_nsec = divmod(nanoseconds, 1_000_000_000)
    libc.timerfd_settime(timer, 0, value, ffi.NULL)


class Wakeup:
    """A descriptor to wait for: readable when the worker has events, or when it is set.

    UCX lets a worker sleep only if no message of it waits for room in shared memory, because shared
    memory does not report room. A channel with such a message sets the wakeup to a short time and
    tries again. The pause doubles until the worker makes progress.

    The worker keeps ownership of `events`. Raises `OSError` if the process has no descriptors left.
    """

    def __init__(self, events: int) -> None:
        self._is_set = False
        self._pause = _MIN_PAUSE
        self._timer = create_timer()
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
            start_timer(self._timer, delay)

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
            start_timer(self._timer, 0)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        timer, self._timer = self._timer, -1
        if timer >= 0:
            os.close(timer)
            self._epoll.close()


class Events:
    """The events that the library's callbacks recorded during progress."""

    __slots__ = ("connection_requests", "error", "limit", "metadata", "refusal", "rendezvous")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The size of the largest metadata message that is accepted, in bytes."""
        self.metadata: deque[bytes] = deque()
        """Metadata messages that arrived whole."""
        self.rendezvous: deque[tuple[Any, int]] = deque()
        """Metadata messages that wait at the peer: data descriptor, and size in bytes."""
        self.connection_requests: deque[Any] = deque()
        """Clients that wait at a listener."""
        self.error = OK
        """The status by which the endpoint failed; OK while it has not."""
        self.refusal: LimitError | None = None
        """The error for a metadata message that was too large."""


@ffi.callback("ucp_am_recv_callback_t")
def _on_metadata(
    arg: Any, header: Any, header_length: int, data: Any, length: int, param: Any
) -> int:
    events: Events = ffi.from_handle(arg)
    if length > events.limit:
        if events.refusal is None:
            events.refusal = LimitError(
                f"a metadata message has {length} bytes; the limit is {events.limit}"
            )
        return OK
    if param.recv_attr & _ATTR_RENDEZVOUS:
        events.rendezvous.append((data, length))
        return IN_PROGRESS
    events.metadata.append(ffi.buffer(data, length)[:] if length else b"")
    return OK


@ffi.callback("ucp_err_handler_cb_t")
def on_error(arg: Any, endpoint: Any, status: int) -> None:
    """Record that an endpoint failed."""
    events: Events = ffi.from_handle(arg)
    if events.error == OK:
        events.error = status


@ffi.callback("ucp_listener_conn_callback_t")
def on_connection_request(request: Any, arg: Any) -> None:
    """Record a client that waits at a listener."""
    events: Events = ffi.from_handle(arg)
    events.connection_requests.append(request)


class Worker:
    """A worker. Hold `lock` to call its methods; any thread may do so.

    Raises `TransportError` if there are not enough descriptors or memory, or if this process was
    forked from one with workers.
    """

    def __init__(self, limit: int, *, plain: bool = False, reach: Reach = Reach.HOST) -> None:
        if _lacks_thread:
            raise TransportError(
                "UCX cannot be used in this process, because it was forked from one with open "
                "connections or listeners of UCX; close them before the fork, or start the process "
                "with the method spawn or forkserver"
            )
        _check_free_descriptors()
        self.lock = threading.RLock()
        """Held around every call of the library for this worker."""
        self.context = get_context(plain=plain, reach=reach)
        """The library's context, with which memory for the peer is registered."""
        self.events = Events(limit)
        """The events that the callbacks recorded."""
        self.callback_argument = ffi.new_handle(self.events)
        """The argument by which callbacks find `events`."""
        self._process = os.getpid()
        self._info = ffi.new("ucp_tag_recv_info_t *")
        params = ffi.new("ucp_worker_params_t *")
        params.field_mask = _FIELD_THREAD_MODE | _FIELD_EVENTS | _FIELD_FLAGS
        params.thread_mode = _THREAD_SERIALIZED
        params.events = _EVENTS
        params.flags = _IGNORE_REQUEST_LEAK
        created = ffi.new("ucp_worker_h *")
        status = ucp.ucp_worker_create(self.context, params, created)
        if status != OK:
            raise TransportError(f"UCX cannot create a worker: {describe(status)}")
        self.handle: Any = created[0]
        """The library's handle; None once destroyed."""
        _open_workers.add(id(self))
        try:
            descriptor = ffi.new("int *")
            status = ucp.ucp_worker_get_efd(self.handle, descriptor)
            if status != OK:
                raise TransportError(f"UCX offers no event descriptor: {describe(status)}")
            self.descriptor: int = descriptor[0]
            """The descriptor that becomes readable by an event after `arm`."""
            self._accept_metadata()
        except BaseException:
            self.destroy()
            raise

    def _accept_metadata(self) -> None:
        handler = ffi.new("ucp_am_handler_param_t *")
        handler.field_mask = _AM_FIELDS
        handler.id = METADATA_ID
        handler.cb = _on_metadata
        handler.arg = self.callback_argument
        status = ucp.ucp_worker_set_am_recv_handler(self.handle, handler)
        if status != OK:
            raise TransportError(f"UCX cannot receive active messages: {describe(status)}")

    @property
    def is_inherited(self) -> bool:
        """Whether it belongs to the parent of this process, which was forked.

        Both use the same descriptors, so this process must not call the library for the worker.
        """
        return self._process != os.getpid()

    def progress(self) -> bool:
        """Do some of the pending work and return whether there was any."""
        return bool(ucp.ucp_worker_progress(self.handle))

    @property
    def has_arrivals(self) -> bool:
        """Whether a message waits to be taken, or the endpoint has failed."""
        events = self.events
        return bool(
            events.error != OK
            or events.refusal is not None
            or events.metadata
            or events.rendezvous
            or ucp.ucp_tag_probe_nb(self.handle, 0, 0, 0, self._info) != NULL
        )

    def arm(self) -> bool:
        """Make the next event wake up the descriptor; return False if there is work already."""
        status = ucp.ucp_worker_arm(self.handle)
        if status == ERR_BUSY:
            return False
        if status != OK:
            raise TransportError(f"UCX cannot wait for events: {describe(status)}")
        return True

    def arm_for(self, wakeup: Wakeup) -> bool:
        """Make the next event, or a pause, wake up `wakeup`; return False if there was work."""
        if not self.arm():
            if self.progress():
                return False
            wakeup.set_later()
        return True

    def close_endpoint(self, endpoint: Any) -> None:
        """Close an endpoint at once: its pending messages are cancelled and the peer notices."""
        param = ffi.new("ucp_request_param_t *")
        param.op_attr_mask = REQUEST_FIELD_FLAGS
        param.flags = _CLOSE_FORCED
        request = ucp.ucp_ep_close_nbx(endpoint, param)
        if get_status(request) == IN_PROGRESS:
            for _ in range(_MAX_CLOSE_STEPS):
                if ucp.ucp_request_check_status(request) != IN_PROGRESS:
                    break
                self.progress()
            ucp.ucp_request_free(request)

    def destroy(self) -> None:
        """Destroy the worker. Idempotent."""
        if self.handle is not None:
            # The library has to finish its work for closed endpoints first: destroying a worker
            # with such work left may free it twice.
            for _ in range(_MAX_LAST_STEPS):
                if not self.progress():
                    break
        handle, self.handle = self.handle, None
        if handle is not None:
            for data, _ in self.events.rendezvous:
                ucp.ucp_am_data_release(handle, data)
            self.events.rendezvous.clear()
            ucp.ucp_worker_destroy(handle)
            _open_workers.discard(id(self))


def _check_free_descriptors() -> None:
    """Refuse a new worker if descriptors are scarce: the library crashes when it gets none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    if len(os.listdir("/proc/self/fd")) + _MIN_FREE_DESCRIPTORS > limit:
        raise TransportError(
            f"UCX cannot open another connection: fewer than {_MIN_FREE_DESCRIPTORS} of "
            f"{limit} descriptors are free; raise the limit (ulimit -n)"
        )
