"""DoAction: what a client may tell the server besides asking for data."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from anyio import to_thread

from ...errors import (
    InvalidRequestError,
    NotFoundError,
    SplitArrowError,
    remote_error,
)
from ...proto import Flight_pb2 as flight
from .call import Call, parsed
from .info import Informer
from .ports import EVERYTHING, READ, WRITE, Office
from .running import RunningStreams, ticket_key
from .shards import Order, check_job
from .store import UploadStore

Reload = Callable[[], object]
"""Reads the configuration anew; raises `ConfigError` and leaves everything as it was."""
_Action = Callable[[Call, bytes], Awaitable[bytes]]
_USE = "both"


class Actions:
    """Serves DoAction and ListActions.

    Parameters
    ----------
    office : Office
        Reads tickets that are to be renewed or cancelled.
    informer : Informer
        Makes new ones.
    running : RunningStreams
        The streams that may be cancelled.
    store : UploadStore or None
        Where uploads are; None: there are none.
    reload : callable or None
        Reads the configuration anew; None: there is none. It is called on a worker thread.
    """

    def __init__(
        self,
        office: Office,
        informer: Informer,
        running: RunningStreams,
        store: UploadStore | None,
        reload: Reload | None,
    ) -> None:
        self._office = office
        self._informer = informer
        self._running = running
        self._store = store
        self._reload = reload
        self._since = time.monotonic()
        self._actions: dict[str, tuple[str, _Action]] = {
            "status": ("What the server counts, and the streams that run: JSON", self._status),
            "cancel": ('End a stream of the caller: {"stream": NUMBER}', self._cancel),
            "renew": ("Exchange a ticket that was not used for a fresh one", self._renew),
            "drop": ("Remove a dataset that was uploaded or published: its name", self._drop),
            "publish": ("Make uploaded shards a version of a dataset: JSON", self._publish),
            "discard": (
                'Remove the shards of a job: {"dataset": NAME, "job": JOB}',
                self._discard,
            ),
            "reload": ("Read the configuration anew", self._reload_now),
            "CancelFlightInfo": ("End the streams of a FlightInfo", self._cancel_info),
            "RenewFlightEndpoint": ("Give an endpoint a fresh ticket", self._renew_endpoint),
        }

    async def list_actions(self, call: Call, message: bytes) -> None:
        """Send the actions that there are."""
        del message
        for name, (description, _) in self._actions.items():
            action = flight.ActionType(type=name, description=description)
            await call.write(action.SerializeToString())

    async def do_action(self, call: Call, message: bytes) -> None:
        """Do what is asked for, and send one result.

        Raises
        ------
        SplitArrowError
            If there is no such action, or it cannot be done.
        """
        action = parsed(flight.Action, message)
        try:
            method = self._actions[action.type][1]
        except KeyError:
            known = ", ".join(self._actions)
            raise remote_error(
                "UNIMPLEMENTED", f"no action {action.type[:80]!r}; there are {known}"
            ) from None
        result = await method(call, action.body)
        await call.write(flight.Result(body=result).SerializeToString())

    async def _status(self, call: Call, body: bytes) -> bytes:
        del body
        daemon = call.daemon
        return _json(
            {
                "version": _version(),
                "uptime_seconds": round(time.monotonic() - self._since, 3),
                "draining": daemon.draining.is_set(),
                "listen": [uri.redacted() for uri in daemon.uris],
                "datasets": call.visible(),
                "stats": daemon.stats(),
                "streams": self._running.described(call.principal),
            }
        )

    async def _cancel(self, call: Call, body: bytes) -> bytes:
        number = _field(body, "stream")
        if not isinstance(number, int):
            raise InvalidRequestError('to cancel a stream say {"stream": NUMBER}')
        if not self._running.cancel(number, call.principal.name):
            raise NotFoundError(f"the caller has no stream {number}")
        return _json({"cancelled": number})

    async def _cancel_info(self, call: Call, body: bytes) -> bytes:
        info = parsed(flight.CancelFlightInfoRequest, body).info
        status = flight.CANCEL_STATUS_NOT_CANCELLABLE
        for endpoint in info.endpoint:
            ticket = endpoint.ticket.ticket
            running = self._running.cancel_ticket(ticket_key(ticket), call.principal.name)
            if running or await self._used_up(call, ticket):
                status = flight.CANCEL_STATUS_CANCELLED
        return flight.CancelFlightInfoResult(status=status).SerializeToString()

    async def _used_up(self, call: Call, ticket: bytes) -> bool:
        """Use up a signed ticket of the caller, so that it is of no more use."""
        try:
            sealed = await to_thread.run_sync(self._office.open, ticket, _USE)
            call.require_own(sealed)
        except SplitArrowError:
            return False
        return bool(sealed.nonce)

    async def _renew(self, call: Call, body: bytes) -> bytes:
        sealed = await to_thread.run_sync(self._office.open, body, _USE)
        call.subject = sealed.request.dataset
        call.require_own(sealed)
        call.require(call.subject, READ)
        return self._informer.ticket(call, sealed.request)

    async def _renew_endpoint(self, call: Call, body: bytes) -> bytes:
        endpoint = parsed(flight.RenewFlightEndpointRequest, body).endpoint
        endpoint.ticket.ticket = await self._renew(call, endpoint.ticket.ticket)
        return endpoint.SerializeToString()

    async def _drop(self, call: Call, body: bytes) -> bytes:
        try:
            name = body.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError("the name is not UTF-8") from None
        await to_thread.run_sync(self._writable(call, name).drop, name)
        return _json({"dropped": name})

    async def _publish(self, call: Call, body: bytes) -> bytes:
        order = Order.parse(body)
        store = self._writable(call, order.dataset)
        return _json(await to_thread.run_sync(store.publications.publish, order))

    async def _discard(self, call: Call, body: bytes) -> bytes:
        name, job = _field(body, "dataset"), _field(body, "job")
        if not isinstance(name, str):
            raise InvalidRequestError('to discard a job say {"dataset": NAME, "job": JOB}')
        store = self._writable(call, name)
        await to_thread.run_sync(store.publications.discard, name, check_job(job))
        return _json({"discarded": job})

    def _writable(self, call: Call, name: str) -> UploadStore:
        call.subject = name
        call.require(name, WRITE)
        if self._store is None:
            raise remote_error("FAILED_PRECONDITION", "this server takes no uploads")
        return self._store

    async def _reload_now(self, call: Call, body: bytes) -> bytes:
        del body
        call.require(EVERYTHING, WRITE)
        if self._reload is None:
            raise remote_error("UNIMPLEMENTED", "this server has no configuration to read anew")
        await to_thread.run_sync(self._reload)
        return _json({"reloaded": True})


def _version() -> str:
    try:
        return version("splitarrow")
    except PackageNotFoundError:
        return "unknown"  # run from its source


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _field(body: bytes, name: str) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRequestError("the body of the action is no JSON") from None
    return value.get(name) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType]
