"""The scheme ``shm``: readers on the same host map the memory that holds the data.

A Unix socket carries the frames. Bodies are remote: they list the offsets of their buffers in a
region. The server announces the region first and passes its file descriptor along
(``SCM_RIGHTS``). Nothing is copied, and nothing has a name in ``/dev/shm``.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import itertools
import os
import pwd
import secrets
import socket
import stat
import struct
import termios
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import (
    ConfigError,
    ConnectError,
    LimitError,
    NotAPeerError,
    ProtocolError,
    TransportError,
    UriError,
)
from ..protocol.devices import DeviceAllocator, StagingAllocator
from ..protocol.frames import IncomingFrame, MessageRun, OutgoingFrame, ReceivedFrame, TaggedFrame
from ..protocol.limits import Limits
from ..protocol.messages import FrameRun
from ..protocol.regions import DeviceHandles, Region, RegionAnnouncement, RemoteBody
from ..protocol.tags import TYPE_SHIFT, BodyType
from ..protocol.uri import DataUri
from .base import Capabilities, ConnectOptions, Diagnosis, ListenOptions, Traits, list_request_tags
from .framing import HEADER, TAGGED
from .memory.mapped_region import MappedRegion
from .socket_channel import SocketChannel

HANDLE_BYTES = 16
"""The size of the identifier, in bytes."""
MAX_ALLOCATIONS = 4096
"""The largest number of allocations in one region of a device."""
_MESSAGE = struct.Struct(f"<{HANDLE_BYTES}sQ")
_DEVICE = struct.Struct("<II16s")
_ALLOCATION = struct.Struct("<64sQ")
_MAX_DESCRIPTORS = 2
"""The descriptors of one announcement: the region, and its revocation socket."""
_MAX_PENDING = 16
"""The announcements whose descriptors may wait until their message is complete."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
_CREDENTIALS = struct.Struct("iII")
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC, which the module socket lacks
_BACKLOG = 1024
_MAX_PATH_BYTES = 107
_SERVER_STAGING = 16 << 10
_socket_numbers = itertools.count()


def pack_announcement(handle: bytes, size: int) -> bytes:
    """Return the message that announces a region of `size` bytes."""
    return _MESSAGE.pack(handle, size)


def pack_device_announcement(handle: bytes, devices: DeviceHandles) -> bytes:
    """Return the message that announces memory of a device."""
    parts = [_MESSAGE.pack(handle, devices.size)]
    parts.append(_DEVICE.pack(devices.type_code, len(devices.allocations), devices.device))
    parts += [_ALLOCATION.pack(each, nbytes) for each, nbytes in devices.allocations]
    return b"".join(parts)


def parse_device_announcement(payload: bytes, handle: bytes) -> DeviceHandles:
    """Return the memory of a device that is announced.

    Raises `ProtocolError` if the message is malformed. Raises `NotAPeerError` as
    `parse_announcement` does.
    """
    size = parse_announcement(payload[: _MESSAGE.size], handle)
    if len(payload) < _MESSAGE.size + _DEVICE.size:
        raise ProtocolError(f"memory of a device was announced in {len(payload)} bytes only")
    type_code, count, device = _DEVICE.unpack_from(payload, _MESSAGE.size)
    begin = _MESSAGE.size + _DEVICE.size
    if not 0 < count <= MAX_ALLOCATIONS or len(payload) != begin + count * _ALLOCATION.size:
        raise ProtocolError(
            f"{count} allocations of a device were announced in {len(payload)} bytes; expected 1 "
            f"to {MAX_ALLOCATIONS}, of {_ALLOCATION.size} bytes each"
        )
    allocations = tuple(_ALLOCATION.iter_unpack(payload[begin:]))
    devices = DeviceHandles(type_code, device, allocations)
    if devices.size != size or not all(nbytes for _, nbytes in allocations):
        raise ProtocolError(
            f"a region of {size} bytes was announced with allocations of {devices.size} bytes"
        )
    return devices


def is_device_announcement(payload: bytes | memoryview) -> bool:
    """Return whether a message announces memory of a device, which has no descriptor."""
    return len(payload) > _MESSAGE.size


def find_device_tag(want_data: int, handle: bytes) -> int | None:
    """Return the tag of data requests by readers that open memory of a device; None if it has none.

    It is ``want_data`` XOR the first 8 bytes of the ``remote_handle``, the least significant first.
    """
    mask = int.from_bytes(handle[:8], "little")
    return want_data ^ mask if mask else None


def parse_announcement(payload: bytes | memoryview, handle: bytes) -> int:
    """Return the size of the region that is announced, in bytes.

    Raises `ProtocolError` if the message is malformed. Raises `NotAPeerError` if its identifier is
    not `handle` because another server now listens at the path.
    """
    if len(payload) != _MESSAGE.size:
        raise ProtocolError(
            f"a region was announced in {len(payload)} bytes; expected {_MESSAGE.size}"
        )
    received, size = _MESSAGE.unpack(payload)
    if received != handle:
        raise NotAPeerError(
            "the announced region does not match the remote_handle of the URI; the server has "
            "restarted since it issued the URI: get a new URI from it"
        )
    return size


def get_peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Return the process ID and the user ID at the other end, as the kernel reports them."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


class _AnnouncementPart:
    """An announcement in the send queue: its bytes, and the descriptors that go with the first."""

    def __init__(self, frame: TaggedFrame, announcement: RegionAnnouncement) -> None:
        header = HEADER.pack(TAGGED, announcement.nbytes, frame.tag)
        self.view = memoryview(header + announcement.payload)
        self.descriptors = announcement.descriptors

    def close(self) -> None:
        """Close the revocation socket, which only the peer needs."""
        for revocation in self.descriptors[1:]:
            revocation.close()


class ShmChannel(SocketChannel):
    """One end of a connection over a Unix socket.

    The channel owns the socket. The reader copies bodies to `device`, for which regions are
    page-locked.
    """

    capabilities = Capabilities(offset_bodies=True)

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        *,
        server: bool,
        peer: str,
        region_tag: int | None = None,
        handle: bytes | None = None,
        staging: int = 64 << 10,
        device: DeviceAllocator | None = None,
    ) -> None:
        super().__init__(sock, limits, server=server, peer=peer, is_local=True, staging=staging)
        self.user = get_peer_credentials(sock)[1]
        """The user ID at the other end."""
        self._region_tag = region_tag
        self._handle = handle
        self._device = device
        self._descriptors: deque[list[int]] = deque()
        self._region: Region | None = None
        self._device_tag: int | None = None
        if region_tag is not None and handle is not None:
            self._device_tag = find_device_tag(region_tag, handle)
        self.opens_devices = False
        """Whether the reader of the current request opens memory of a device; on the server."""
        self._opens_devices = (
            not server
            and device is not None
            and self._device_tag is not None
            and device.can_share(get_peer_credentials(sock)[0])
        )
        if self._opens_devices and device is not None:
            devices = frozenset({device.type_code})
            self.capabilities = Capabilities(offset_bodies=True, devices=devices)

    @property
    def unread_bytes(self) -> int:
        """The memory of sent data that the peer has not read yet, in bytes."""
        unread = array.array("i", bytes(4))
        fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, unread)
        return unread[0]

    def announce(self, size: int, descriptors: tuple[Any, ...]) -> RegionAnnouncement:
        """Return the message that announces a region of `size` bytes to the reader.

        The channel closes the revocation socket, the second descriptor, once it is sent.
        """
        return RegionAnnouncement(pack_announcement(self._handle or b"", size), descriptors)

    def duplicate(self) -> socket.socket:
        """Return another object for the socket, after the end of what this end sends."""
        duplicate = self._socket.dup()
        with contextlib.suppress(OSError):  # the other end is closed
            duplicate.shutdown(socket.SHUT_WR)
        return duplicate

    def announce_device(self, handles: DeviceHandles) -> RegionAnnouncement:
        """Return the message that announces memory of a device to the reader."""
        return RegionAnnouncement(pack_device_announcement(self._handle or b"", handles), ())

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames; see `Channel.queue`."""
        if isinstance(frames, FrameRun):
            super().queue(frames)
            return
        plain: list[OutgoingFrame] = []
        for frame in frames:
            if (
                self._opens_devices
                and isinstance(frame, TaggedFrame)
                and frame.tag == self._region_tag
                and self._device_tag is not None
            ):
                plain.append(frame._replace(tag=self._device_tag))
            elif (
                isinstance(frame, TaggedFrame)
                and frame.buffers
                and isinstance(frame.buffers[0], RegionAnnouncement)
            ):
                super().queue(plain)
                plain = []
                self._parts.append(_AnnouncementPart(frame, frame.buffers[0]))
            else:
                plain.append(frame)
        super().queue(plain)

    def _send_other(self, part: _AnnouncementPart) -> None:
        numbers = array.array("i", [each.fileno() for each in part.descriptors])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else []
        sent = self._socket.sendmsg([part.view], rights, socket.MSG_NOSIGNAL)
        self.bytes_sent += sent
        if sent < part.view.nbytes:
            self._parts[0] = part.view[sent:]
        else:
            self._parts.popleft()
        part.close()

    def _receive_into(self, targets: list[memoryview]) -> int:
        count, ancillary, flags, _ = self._socket.recvmsg_into(
            targets, _ANCILLARY_BYTES, _CLOSE_ON_EXEC
        )
        self.bytes_received += count
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._descriptors.append(list(numbers))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MAX_PENDING:
            raise LimitError(
                f"{self.peer} sent too many descriptors: at most {_MAX_DESCRIPTORS} with each of "
                f"{_MAX_PENDING} regions"
            )
        return count

    def _has_received_enough(self, received: int) -> bool:
        # Announcements are handled before their descriptors reach the limit.
        return len(self._descriptors) >= _MAX_PENDING // 2 or super()._has_received_enough(received)

    def _set_low_water(self) -> None:
        """Leave the low-water mark at 1: no frame on this socket is large."""

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived, with a region for each remote body."""
        while True:
            frames = super().receive_some()
            if self._server:
                return [self._note_request(frame) for frame in frames]
            if not frames:
                return frames
            ready = self._resolve_regions(frames)
            if ready:
                return ready

    def _note_request(self, frame: IncomingFrame) -> IncomingFrame:
        """Remember whether the reader of a request opens memory of a device."""
        if isinstance(frame, ReceivedFrame) and self._region_tag is not None:
            if frame.tag == self._region_tag:
                self.opens_devices = False
            elif frame.tag == self._device_tag:
                self.opens_devices = self.user in (0, os.geteuid())
                return frame._replace(tag=self._region_tag)
        return frame

    def _resolve_regions(self, frames: list[IncomingFrame]) -> list[IncomingFrame]:
        """Map announced regions, and attach the current one to each remote body."""
        ready: list[IncomingFrame] = []
        try:
            for frame in frames:
                if isinstance(frame, MessageRun):
                    if frame.body_type is BodyType.OFFSETS:
                        frame.region = self._find_region(frame.sequence)
                    ready.append(frame)
                elif not isinstance(frame, ReceivedFrame):
                    ready.append(frame)
                elif frame.tag == self._region_tag:
                    self._map_region(bytes(frame.body))
                elif frame.tag >> TYPE_SHIFT == BodyType.OFFSETS:
                    body = RemoteBody(frame.body, self._find_region(frame.tag))
                    ready.append(ReceivedFrame(frame.tag, body))
                else:
                    ready.append(frame)
        except (ProtocolError, TransportError) as error:
            if not ready:
                raise
            self._pending_error = error  # the next read raises it
        return ready

    def _find_region(self, tag: int) -> Region:
        """Return the region that was announced last."""
        if self._region is None:
            raise ProtocolError("a remote body arrived before any region", tag=tag)
        return self._region

    def _map_region(self, announcement: bytes) -> None:
        if self._handle is None:
            raise ProtocolError("the server announced a region, but the URI has no remote_handle")
        if is_device_announcement(announcement):
            handles = parse_device_announcement(announcement, self._handle)
            if self._device is None or not self._opens_devices:
                raise ProtocolError("the server announced memory of a device without a request")
            self._region = self._device.open_region(handles, os.dup(self._socket.fileno()))
            return
        size = parse_announcement(announcement, self._handle)
        if not self._descriptors:
            raise ProtocolError("the server announced a region without a descriptor")
        region, *revocation = self._descriptors.popleft()
        mapped = self._region = MappedRegion(region, size, *revocation)
        if self._device is not None and mapped.address:
            mapped.page_lock = self._device.register(mapped.address, size)

    def close(self) -> None:
        """Close; see `Channel.close`. Regions stay mapped as long as buffers of them live."""
        self._close_descriptors()
        super().close()

    def abort(self) -> None:
        """Close at once; see `Channel.abort`. Regions stay mapped like after `close`."""
        self._close_descriptors()
        super().abort()

    def _close_descriptors(self) -> None:
        for part in self._parts:
            if isinstance(part, _AnnouncementPart):
                part.close()
        while self._descriptors:
            for descriptor in self._descriptors.popleft():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._region = None


def find_runtime_folder() -> Path:
    """Return the folder of sockets that have no path of their own; only this user may use it."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder and Path(folder).is_dir():
        return Path(folder) / "splitarrow"
    return Path(f"/tmp/splitarrow-{os.getuid()}")


def create_socket_path() -> Path:
    """Return a path that no other listener of this host uses."""
    return find_runtime_folder() / f"{os.getpid()}-{next(_socket_numbers)}.sock"


class ShmListener:
    """A bound Unix socket.

    If the URI has no path, the listener chooses one in `find_runtime_folder`. `users` may connect,
    besides the server's user and root. Raises `ConfigError` if the path cannot be bound.
    """

    def __init__(self, uri: DataUri, limits: Limits, users: frozenset[int]) -> None:
        self._limits = limits
        self._users = users | {0, os.geteuid()}
        path = Path(uri.path) if uri.path.strip("/") else create_socket_path()
        self.socket = _bind_socket(path, 0o666 if users else 0o600)
        """The listening socket."""
        self._path = path
        self._inode = path.stat().st_ino
        self._handle = uri.remote_handle or secrets.token_bytes(HANDLE_BYTES)
        self.uri = uri.replace(path=str(path), remote_handle=self._handle)
        """The address, with the path that was bound and the identifier of the regions."""
        self.request_tags = list_request_tags(self.uri, BodyType.OFFSETS)
        """The tag of data requests. Bodies are always remote."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits."""
        return self.socket.fileno()

    def accept(self) -> ShmChannel | None:
        """Return the channel of the next client, or None if no client waits."""
        while True:
            try:
                sock, _ = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            try:
                process, user = get_peer_credentials(sock)
                channel = ShmChannel(
                    sock,
                    self._limits,
                    server=True,
                    peer=f"process {process} of user {user}",
                    region_tag=self.uri.want_data,
                    handle=self._handle,
                    staging=_SERVER_STAGING,
                )
                if user not in self._users:
                    channel.refusal = _explain_refusal(user)
                return channel
            except OSError:  # the client has left already
                sock.close()

    def reject(self) -> bool:
        """Disconnect the next client; return whether one was waiting."""
        try:
            sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        sock.close()
        return True

    def close(self) -> None:
        """Stop listening and remove the socket. Idempotent."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def _explain_refusal(user: int) -> str:
    try:
        name = f"{pwd.getpwuid(user).pw_name!r} ({user})"
    except KeyError:
        name = str(user)
    return (
        f"the server's setting shm_users does not list the user {name}; add the id there, or read "
        "over another transport"
    )


def _bind_socket(path: Path, mode: int) -> socket.socket:
    """Return a listening Unix socket. It replaces the socket that a dead server left behind."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ConfigError(
            f"cannot listen on {path}: the path of a socket has at most {_MAX_PATH_BYTES} bytes"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True)
        _check_owner(path.parent)
        try:
            _bind(sock, path, mode)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_abandoned(path):
                raise
            path.unlink()
            _bind(sock, path, mode)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on shm://{path}: {error.strerror or error}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _bind(sock: socket.socket, path: Path, mode: int) -> None:
    # The socket must be closed to other users from its first moment. The umask applies to all
    # threads, but it can only remove permissions.
    before = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    finally:
        os.umask(before)
    if mode != 0o600:
        path.chmod(mode)


def _check_owner(folder: Path) -> None:
    """Refuse the default folder, which may be in /tmp, if another user has created it."""
    if folder == find_runtime_folder() and folder.stat().st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"cannot listen in {folder}, which belongs to another user; choose another path, for "
            "example shm:///run/…/data.sock"
        )


def _is_abandoned(path: Path) -> bool:
    """Return whether a path is a socket that no process listens on."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass  # a busy server listens there, or its backlog is full
    return False


class ShmTransport:
    """The scheme ``shm``."""

    scheme = "shm"
    traits = Traits(local_only=True, leases_memory=True, location_rank=10)

    def listen(self, uri: DataUri, options: ListenOptions) -> ShmListener:
        """Bind a path; see `Transport.listen`."""
        _check_address(uri)
        return ShmListener(uri, options.limits, options.users)

    def connect(self, uri: DataUri, options: ConnectOptions) -> ShmChannel:
        """Connect; see `Transport.connect`."""
        _check_address(uri)
        if not uri.path.strip("/"):
            raise UriError(f"{uri.redacted()} has no path: an shm address names a socket")
        allocator = options.allocator
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(options.timeout)
            sock.connect(uri.path)
            return ShmChannel(
                sock,
                options.limits,
                server=False,
                peer=uri.path,
                region_tag=uri.want_data,
                handle=uri.remote_handle,
                device=allocator.device if isinstance(allocator, StagingAllocator) else None,
            )
        except TimeoutError:
            sock.close()
            raise ConnectError(
                f"cannot connect to shm://{uri.path}: no answer within {options.timeout:g} s"
            ) from None
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            raise ConnectError(f"cannot connect to shm://{uri.path}: {reason}") from None

    def diagnose(self) -> Diagnosis:
        """Return whether the kernel supplies sealable memory."""
        try:
            os.close(os.memfd_create("splitarrow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        except OSError as error:
            return Diagnosis(f"the kernel supplies no sealable memory: {error.strerror}")
        return Diagnosis()


def _check_address(uri: DataUri) -> None:
    if uri.host or uri.port is not None:
        raise UriError(
            f"{uri.redacted()} has a host: an shm address is a path alone, shm:///run/…/data.sock"
        )
    if uri.remote_handle is not None and len(uri.remote_handle) != HANDLE_BYTES:
        raise UriError(
            f"{uri.redacted()}: remote_handle has {len(uri.remote_handle)} bytes; that of an shm "
            f"address has {HANDLE_BYTES} bytes"
        )


TRANSPORT = ShmTransport()
