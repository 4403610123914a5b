"""Workers: how they are created and destroyed, and what their callbacks record."""

from __future__ import annotations

import os
import resource
import select
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_header import Header, Overlay, read_numbers
from splitarrow.errors import TransportError
from splitarrow.transport.ucx import worker as workers
from splitarrow.transport.ucx.context import Reach
from splitarrow.transport.ucx.ffi import IN_PROGRESS, NULL, OK, ffi, ucp
from splitarrow.transport.ucx.worker import Events, Worker

FAILED = Header.UCS_ERR_NO_MEMORY


class Library:
    """Takes the place of the library: creates a worker, and records what is done with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **statuses: int) -> None:
        self.statuses = statuses
        self.calls: list[Any] = []
        self.work = 0
        self.polls = 0
        self.pending_polls = 0
        monkeypatch.setattr(workers, "ucp", self)
        monkeypatch.setattr(workers, "get_context", lambda **options: tuple(options.items()))

    def ucp_worker_create(self, context: Any, params: Any, created: Any) -> int:
        self.calls.append(("create", context))
        created[0] = ffi.cast("ucp_worker_h", 4096)
        return self.statuses.get("create", OK)

    def ucp_worker_get_efd(self, handle: Any, descriptor: Any) -> int:
        descriptor[0] = 77
        return self.statuses.get("descriptor", OK)

    def ucp_worker_set_am_recv_handler(self, handle: Any, handler: Any) -> int:
        return self.statuses.get("handler", OK)

    def ucp_worker_progress(self, handle: Any) -> int:
        self.work -= 1
        return self.work >= 0

    def ucp_am_data_release(self, handle: Any, data: Any) -> None:
        self.calls.append(("release", data))

    def ucp_worker_destroy(self, handle: Any) -> None:
        self.calls.append("destroy")

    def ucp_ep_close_nbx(self, endpoint: Any, param: Any) -> Any:
        self.calls.append((endpoint, read_numbers(param)))
        return ffi.cast("void *", 4096) if self.pending_polls else NULL

    def ucp_request_check_status(self, request: Any) -> int:
        self.polls += 1
        return IN_PROGRESS if self.polls < self.pending_polls else OK

    def ucp_request_free(self, request: Any) -> None:
        self.calls.append("free")


def test_a_worker_wakes_for_each_kind_of_message(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, int]] = []

    def spy(name: str, at: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            passed.append(read_numbers(arguments[at]))
            return getattr(ucp, name)(*arguments)

        return call

    names = {"ucp_worker_create": 1, "ucp_worker_set_am_recv_handler": 1}
    overlay = Overlay(ucp, **{name: spy(name, at) for name, at in names.items()})
    monkeypatch.setattr(workers, "ucp", overlay)
    worker = Worker(1000, reach=Reach.LOOPBACK)
    try:
        assert passed == [
            {
                "field_mask": Header.UCP_WORKER_PARAM_FIELD_THREAD_MODE
                | Header.UCP_WORKER_PARAM_FIELD_EVENTS
                | Header.UCP_WORKER_PARAM_FIELD_FLAGS,
                "thread_mode": Header.UCS_THREAD_MODE_SERIALIZED,
                "events": Header.UCP_WAKEUP_RMA
                | Header.UCP_WAKEUP_TAG_SEND
                | Header.UCP_WAKEUP_TAG_RECV
                | Header.UCP_WAKEUP_TX
                | Header.UCP_WAKEUP_RX,
                "flags": Header.UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
            },
            {
                "field_mask": Header.UCP_AM_HANDLER_PARAM_FIELD_ID
                | Header.UCP_AM_HANDLER_PARAM_FIELD_CB
                | Header.UCP_AM_HANDLER_PARAM_FIELD_ARG,
            },  # the ID of metadata messages is 0
        ]
        assert (worker.events.limit, worker.events.error, worker.events.refusal) == (1000, OK, None)
        assert ffi.from_handle(worker.callback_argument) is worker.events
        while worker.progress():
            pass
        assert worker.arm()
        assert not select.select([worker.descriptor], [], [], 0)[0]
    finally:
        worker.destroy()
    assert worker.handle is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(worker.descriptor)


def test_the_context_of_a_worker_depends_on_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    Worker(0)
    Worker(0, plain=True)
    Worker(0, reach=Reach.LOOPBACK)
    assert library.calls == [
        ("create", (("plain", False), ("reach", Reach.HOST))),
        ("create", (("plain", True), ("reach", Reach.HOST))),
        ("create", (("plain", False), ("reach", Reach.LOOPBACK))),
    ]


@pytest.mark.parametrize(
    ("step", "why", "is_destroyed"),
    [
        ("create", "cannot create a worker: out of memory", False),
        ("descriptor", "offers no event descriptor: out of memory", True),
        ("handler", "cannot receive active messages: out of memory", True),
    ],
)
def test_a_worker_that_cannot_be_created_is_an_error(
    monkeypatch: pytest.MonkeyPatch, step: str, why: str, is_destroyed: bool
) -> None:
    library = Library(monkeypatch, **{step: FAILED})
    with pytest.raises(TransportError, match=why):
        Worker(0)
    assert library.calls[1:] == ["destroy"] * is_destroyed


def test_a_worker_finishes_its_work_before_it_is_destroyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Library(monkeypatch)
    worker = Worker(0)
    worker.events.rendezvous += [("first", 1), ("second", 2)]
    library.work = 10
    library.calls.clear()
    worker.destroy()
    assert library.work == -1  # until there is no more
    worker.destroy()
    assert library.calls == [("release", "first"), ("release", "second"), "destroy"]
    assert not worker.events.rendezvous
    endless = Worker(0)
    library.work = 5000
    endless.destroy()
    assert library.work == 4000


def test_an_endpoint_is_closed_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    worker = Worker(0)
    closing = (
        "endpoint",
        {
            "op_attr_mask": Header.UCP_OP_ATTR_FIELD_FLAGS,
            "flags": Header.UCP_EP_CLOSE_FLAG_FORCE,
        },
    )
    library.calls.clear()
    worker.close_endpoint("endpoint")
    assert (library.calls, library.polls) == ([closing], 0)
    library.calls.clear()
    library.pending_polls, library.work = 3, 100
    worker.close_endpoint("endpoint")
    assert library.calls == [closing, "free"]
    assert (library.polls, library.work) == (3, 98)
    library.polls, library.pending_polls, library.work = 0, 5000, 5000
    worker.close_endpoint("endpoint")
    assert (library.polls, library.work, library.calls[-1]) == (1000, 4000, "free")


@pytest.mark.parametrize(
    ("arms", "work", "result", "later"),
    [(True, 0, True, 0), (False, 1, False, 0), (False, 0, True, 1)],
)
def test_a_worker_that_cannot_sleep_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, arms: bool, work: int, result: bool, later: int
) -> None:
    library: Any = Library(monkeypatch)
    worker = Worker(0)
    library.ucp_worker_arm = lambda _: OK if arms else Header.UCS_ERR_BUSY  # pyright: ignore
    library.work = work
    pauses: list[bool] = []
    wakeup: Any = SimpleNamespace(set_later=lambda: pauses.append(True))
    assert worker.arm_for(wakeup) is result
    assert len(pauses) == later


# The callbacks of the library.


def deliver(events: Events, payload: bytes, attributes: int = 0) -> int:
    handle = ffi.new_handle(events)
    data = ffi.new("char[]", payload or b"not sent")
    param = ffi.new("ucp_am_recv_param_t *")
    param.recv_attr = attributes
    return workers._on_metadata(handle, NULL, 0, data, len(payload), param)


def test_metadata_is_recorded_up_to_the_limit() -> None:
    events = Events(5)
    assert deliver(events, b"12345") == Header.UCS_OK
    assert deliver(events, b"") == Header.UCS_OK
    assert deliver(events, b"ab", Header.UCP_AM_RECV_ATTR_FLAG_DATA) == Header.UCS_OK
    assert list(events.metadata) == [b"12345", b"", b"ab"]
    assert (events.refusal, len(events.rendezvous)) == (None, 0)
    assert deliver(events, b"large", Header.UCP_AM_RECV_ATTR_FLAG_RNDV) == Header.UCS_INPROGRESS
    ((_, length),) = events.rendezvous
    assert (length, events.refusal) == (5, None)
    rendezvous = Header.UCP_AM_RECV_ATTR_FLAG_RNDV
    assert deliver(events, b"123456", rendezvous) == Header.UCS_OK
    assert deliver(events, b"1234567") == Header.UCS_OK
    assert (len(events.metadata), len(events.rendezvous)) == (3, 1)
    assert events.refusal is not None
    assert events.refusal.message == "a metadata message has 6 bytes; the limit is 5"


def test_the_first_error_of_an_endpoint_counts() -> None:
    events = Events(0)
    handle = ffi.new_handle(events)
    workers.on_error(handle, NULL, Header.UCS_ERR_CONNECTION_RESET)
    workers.on_error(handle, NULL, FAILED)
    assert events.error == Header.UCS_ERR_CONNECTION_RESET


def test_clients_of_a_listener_wait_in_their_order() -> None:
    events = Events(0)
    handle = ffi.new_handle(events)
    for address in (4096, 8192):
        workers.on_connection_request(ffi.cast("ucp_conn_request_h", address), handle)
    waiting = [int(ffi.cast("uintptr_t", request)) for request in events.connection_requests]
    assert waiting == [4096, 8192]


def test_a_worker_that_cannot_wait_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = [OK, -15, -3]
    monkeypatch.setattr(workers, "ucp", SimpleNamespace(ucp_worker_arm=lambda _: statuses.pop(0)))
    stub: Any = SimpleNamespace(handle="worker")
    assert workers.Worker.arm(stub) is True
    assert workers.Worker.arm(stub) is False  # there is work already
    with pytest.raises(TransportError, match="cannot wait for events"):
        workers.Worker.arm(stub)


@pytest.mark.parametrize(
    ("limit", "is_enough"),
    [(resource.RLIM_INFINITY, True), (164, True), (163, False), (0, False)],
)
def test_a_worker_needs_64_free_descriptors(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_enough: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 100)
    context = nullcontext() if is_enough else pytest.raises(TransportError, match="fewer than 64")
    with context:
        workers.Worker(1)
