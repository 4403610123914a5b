"""Listening and connecting on Unix sockets."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pwd
import secrets
import socket
import stat
from pathlib import Path

from ...errors import ConfigError, ConnectError, UriError
from ...protocol.devices import StagingAllocator
from ...protocol.limits import Limits
from ...protocol.tags import BodyType
from ...protocol.uri import DataUri
from ..base import ConnectOptions, Diagnosis, ListenOptions, Traits, list_request_tags
from .announcement import HANDLE_BYTES
from .channel import ShmChannel, get_peer_credentials

_BACKLOG = 1024
_MAX_PATH_BYTES = 107
_SERVER_STAGING = 16 << 10
_socket_numbers = itertools.count()


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

    Parameters
    ----------
    uri : DataUri
        The path to bind. Without a path the listener chooses one in `find_runtime_folder`.
    limits : Limits
        Limits on received frames.
    users : frozenset of int
        The user IDs that may connect, besides the server's own and root.

    Raises
    ------
    ConfigError
        If the path cannot be bound.
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
    """Return a listening Unix socket. It replaces the socket that a dead server left behind.

    Raises
    ------
    ConfigError
        If the path cannot be bound.
    """
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
