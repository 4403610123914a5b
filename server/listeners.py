"""The listeners of a daemon: their URIs, their shares of the limits, and accepting connections.

No listener can take the connections and descriptors that are reserved for the others.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from socket import socket
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ..errors import ConfigError, UsageError
from ..formats.arguments import check_text
from ..protocol.limits import Limits
from ..protocol.uri import DataUri, Streams
from ..transport.base import Channel, Listener, ListenOptions
from ..transport.log_limiter import LogLimiter
from ..transport.registry import find_transport
from .addresses import ANY_INTERFACE, control_uri
from .auth.access_control import AccessControl
from .config import DEFAULT_LISTEN, EMBEDDED_LISTEN, Settings
from .config.settings import listener_uri
from .context import ServerContext
from .logs import get_logger
from .shm.regions import SharedRegions

_UNLIMITED = 1 << 30
_MIN_RESERVE = 16
_RESERVE_SHARE = 8


class Shares:
    """Divides a capacity so that a flood of one listener leaves the others working.

    One half of the capacity is reserved for the listeners, in equal parts. The other half belongs
    to whoever comes first.

    Examples
    --------
    >>> shares = Shares(2)
    >>> [shares.room(0, 8), shares.room(1, 8)]
    [6, 6]
    >>> shares.take(0, 6)
    >>> [shares.room(0, 8), shares.room(1, 8)]
    [0, 2]
    """

    def __init__(self, count: int) -> None:
        self._used = [0] * count

    def room(self, index: int, capacity: int) -> int:
        """Return the amount that a listener may still take of a capacity."""
        reserved = reserved_share(capacity, len(self._used))
        others = sum(max(0, reserved - used) for at, used in enumerate(self._used) if at != index)
        return capacity - sum(self._used) - others

    def take(self, index: int, amount: int) -> None:
        """Record that a listener uses an amount."""
        self._used[index] += amount

    def give_back(self, index: int, amount: int) -> None:
        """Record that a listener no longer uses an amount."""
        self._used[index] -= amount


def reserved_share(capacity: int, count: int) -> int:
    """Return what is reserved for each of `count` listeners."""
    return capacity // (2 * count)


def count_listeners(settings: Settings) -> int:
    """Return the number of listeners of a server, with that of the control plane."""
    return len(settings.listen) + (settings.control is not None)


class Descriptors:
    """The descriptors that the process may use for connections.

    What it has open already, and a reserve for files and logs, are not among them.
    """

    def __init__(self) -> None:
        self._used_before = len(os.listdir("/proc/self/fd"))

    @property
    def capacity(self) -> int:
        """The number of descriptors for all connections together."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit in (resource.RLIM_INFINITY, -1):
            return _UNLIMITED
        reserve = max(_MIN_RESERVE, limit // _RESERVE_SHARE)
        return max(0, limit - self._used_before - reserve)


_MAX_FRAME_BYTES = 1 << 20
"""The largest frame of a reader: a ticket, or the offsets that it frees."""


def bind_listeners(
    settings: Settings,
    access: AccessControl,
    regions: SharedRegions,
    sockets: Mapping[str, socket] | None = None,
    *,
    traced: bool = False,
) -> list[Listener]:
    """Bind every listener of the settings that has no socket yet, or none if one of them fails.

    Raises `ConfigError` if an address cannot be bound, or would be open to other machines.
    """
    control_uri(settings)  # before the listeners, whose error would hide that of this address
    uris = [listener_uri(text, traced=traced) for text in settings.listen]
    access.check_exposure(
        uris,
        None,
        client_certificates=settings.tls_client_ca is not None,
        insecure=settings.insecure,
    )
    listeners: list[Listener] = []
    try:
        for text, uri in zip(settings.listen, uris, strict=True):
            try:
                sock = None if sockets is None else sockets.get(text)
                listeners.append(_bind(uri, settings, regions, sock))
            except ConfigError as error:
                # The default settings also listen for readers on this host. The server starts
                # without that listener where it cannot be bound.
                is_default = settings.listen in (DEFAULT_LISTEN, EMBEDDED_LISTEN)
                if not (is_default and find_transport(uri).traits.local_only):
                    raise
                get_logger("daemon").warning("shared memory is disabled", reason=error.message)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(
    uri: DataUri, settings: Settings, regions: SharedRegions, sock: socket | None
) -> Listener:
    limits = Limits(body_bytes=_MAX_FRAME_BYTES, metadata_bytes=_MAX_FRAME_BYTES)
    options = ListenOptions(
        limits=limits,
        socket=sock,
        users=frozenset(settings.shm_users),
        tls=settings.tls,
        map_file=regions.mappings.map,
        handshake_seconds=settings.handshake_seconds,
        proxies=settings.proxies,
        max_waiting=reserved_share(Descriptors().capacity, count_listeners(settings)),
    )
    return find_transport(uri).listen(uri, options)


def select_listener(
    uris: Iterable[DataUri], scheme: str | None = None, stream: str | None = None
) -> DataUri:
    """Return the URI of the first listener of a scheme that carries a stream.

    By default, any scheme will do, and a listener for both streams is preferred. Raises
    `UsageError` if there is no such listener.
    """
    for name, value in (("scheme", scheme), ("stream", stream)):
        if value is not None:
            check_text(name, value)
    matches = [
        uri for uri in uris if scheme in (None, uri.scheme) and stream in (None, uri.stream.value)
    ]
    if not matches:
        requested = [scheme or "any transport", *([f"stream={stream}"] if stream else [])]
        raise UsageError(f"the server does not listen on {' with '.join(requested)}")
    matches.sort(key=lambda uri: uri.stream is not Streams.BOTH)
    return matches[0].replace(host=ANY_INTERFACE.get(matches[0].host, matches[0].host))


_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_OUT_OF_RESOURCES = (*_OUT_OF_DESCRIPTORS, errno.ENOBUFS, errno.ENOMEM)
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 1.0
_MAX_REFUSAL_DESCRIPTORS = 36
"""The descriptors for connections that are kept only until their first request is refused."""
_YIELD_SECONDS = 0.002
"""How long a process leaves a new connection to those that serve fewer."""

Serve = Callable[[Channel, Listener, bool], Awaitable[None]]
"""Serves a connection to its end. The last argument is whether there is room for it."""


class _Slot(NamedTuple):
    """What a connection takes of the limits."""

    listener: int
    """The index of the listener."""
    cost: int
    """The number of descriptors."""
    host: str | None
    """The address of the client; None on this host's own transports."""


class Acceptor:
    """Accepts the connections of all listeners of a server.

    A connection beyond a limit is refused: its first request gets RESOURCE_EXHAUSTED. If there
    are too many of those as well, it is closed at once. When the process runs out of
    descriptors, a spare one serves to refuse connections, one at a time, and all listeners pause.
    """

    def __init__(self, listeners: Sequence[Listener], context: ServerContext, serve: Serve) -> None:
        count = count_listeners(context.settings)
        self._listeners = listeners
        self._context = context
        self._serve = serve
        self._connection_shares = Shares(max(count, 1))
        self._descriptor_shares = Shares(max(count, 1))
        self._descriptors = Descriptors()
        self._usage = context.usage
        self._load = 0
        self._accepts = False
        self._refusal_descriptors = 0
        self.spare: int | None = _open_spare()
        """The spare descriptor; None while a connection uses it."""
        self._pause = _MIN_PAUSE_SECONDS
        self._paused_until = 0.0
        self._limiter = LogLimiter()
        self._log = get_logger("daemon")

    @property
    def has_room(self) -> bool:
        """Whether a listener has room for another connection. Any thread may use this."""
        return self.spare is not None and any(
            self._has_room(index, find_transport(listener.uri).traits.descriptors)
            for index, listener in enumerate(self._listeners)
        )

    async def run(self, sessions: TaskGroup) -> None:
        """Accept connections until cancelled, and serve them in a task group."""
        self._accepts = True
        self._add_load(0)
        try:
            async with anyio.create_task_group() as tasks:
                for index, listener in enumerate(self._listeners):
                    tasks.start_soon(self._accept, index, listener, sessions)
        finally:
            self._accepts = False
            self._add_load(0)
            if self.spare is not None:
                os.close(self.spare)
                self.spare = None

    async def _accept(self, index: int, listener: Listener, sessions: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener.fileno())
            if anyio.current_time() < self._paused_until:
                await anyio.sleep_until(self._paused_until)
            if self._usage.is_busier:
                await anyio.sleep(_YIELD_SECONDS)
            try:
                while self._accept_one(index, listener, sessions):
                    self._pause = _MIN_PAUSE_SECONDS
                    await checkpoint()
                    await checkpoint()  # the stream that a new reader requested begins first
                    if self._usage.is_busier:
                        break
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._report("cannot accept connections", listener, error.strerror)
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._refuse_with_spare(listener, sessions)
                self._paused_until = anyio.current_time() + self._pause
                self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)

    def _accept_one(self, index: int, listener: Listener, sessions: TaskGroup) -> bool:
        """Handle the next connection of a listener; return whether one was waiting."""
        cost = find_transport(listener.uri).traits.descriptors
        has_room = self._has_room(index, cost)
        if not has_room and self._refusal_descriptors + cost > _MAX_REFUSAL_DESCRIPTORS:
            rejected = listener.reject()
            if rejected:
                self._context.refusals.record_connection(listener.uri.scheme)
            return rejected
        channel = listener.accept()
        if channel is None:
            return False
        slot = _Slot(index, cost, _host_of(channel, listener))
        is_refused = channel.refusal is not None
        if has_room and not is_refused and self._take(slot):
            sessions.start_soon(self._run, channel, listener, True, partial(self._release, slot))
            return True
        event = "of users that shm_users does not list" if is_refused else "too many"
        self._report(f"refusing connections: {event}", listener)
        if self._refusal_descriptors + cost > _MAX_REFUSAL_DESCRIPTORS:
            self._context.refusals.record_connection(listener.uri.scheme)
            channel.abort()
        else:
            self._refusal_descriptors += cost
            release = partial(self._release_refusal, cost)
            sessions.start_soon(self._run, channel, listener, False, release)
        return True

    def _has_room(self, index: int, cost: int) -> bool:
        connections = self._context.settings.max_connections
        return (
            self._connection_shares.room(index, connections) >= 1
            and self._descriptor_shares.room(index, self._descriptors.capacity) >= cost
        )

    def _refuse_with_spare(self, listener: Listener, sessions: TaskGroup) -> None:
        """Accept one connection with the spare descriptor, only to refuse its request."""
        if self.spare is None:
            self.spare = _open_spare()
            return
        os.close(self.spare)
        self.spare = None
        try:
            channel = listener.accept()
        except OSError:
            channel = None
        if channel is None:
            self.spare = _open_spare()
        else:
            sessions.start_soon(self._run, channel, listener, False, self._restore_spare)

    async def _run(
        self, channel: Channel, listener: Listener, has_room: bool, release: Callable[[], None]
    ) -> None:
        try:
            await self._serve(channel, listener, has_room)
        finally:
            release()

    def _take(self, slot: _Slot) -> bool:
        """Count an admitted connection; return False if its address has too many."""
        limit = self._context.settings.address_limit
        if slot.host is not None and not self._usage.addresses.take(slot.host, limit):
            return False
        self._connection_shares.take(slot.listener, 1)
        self._descriptor_shares.take(slot.listener, slot.cost)
        self._add_load(1)
        return True

    def _release(self, slot: _Slot) -> None:
        self._add_load(-1)
        self._connection_shares.give_back(slot.listener, 1)
        self._descriptor_shares.give_back(slot.listener, slot.cost)
        if slot.host is not None:
            self._usage.addresses.release(slot.host)

    def _add_load(self, connections: int) -> None:
        self._load += connections
        self._usage.set_load(self._load if self._accepts else None)

    def _release_refusal(self, cost: int) -> None:
        self._refusal_descriptors -= cost

    def _restore_spare(self) -> None:
        self.spare = _open_spare()

    def _report(self, event: str, listener: Listener, reason: str | None = None) -> None:
        """Log an event once a minute for each listener."""
        address = listener.uri.address
        left_out = self._limiter.admit((event, address))
        if left_out is not None:
            details = {"reason": reason} if reason else {}
            self._log.error(event, listener=address, left_out=left_out, **details)


def _host_of(channel: Channel, listener: Listener) -> str | None:
    if find_transport(listener.uri).traits.local_only:
        return None
    return channel.peer.rpartition(":")[0]


def _open_spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
