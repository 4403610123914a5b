"""Where an ``shm`` listener is, and connecting to it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import socket
import stat
from pathlib import Path

from ...errors import ConfigError, ConnectError, UriError
from ...protocol.limits import Limits
from ...protocol.uri import DataUri
from .channel import CAPABILITIES, ShmChannel, peer_user
from .handover import HANDLE_BYTES

_BACKLOG = 1024
_MOST_PATH = 107
_SERVER_STAGING = 16 << 10
_count = itertools.count()


def runtime_folder() -> Path:
    """Return the folder for sockets that nobody named: this user's own."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_dir():
        return Path(given) / "splitarrow"
    return Path(f"/tmp/splitarrow-{os.getuid()}")


def own_path() -> Path:
    """Return a path for the socket of this process."""
    return runtime_folder() / f"{os.getpid()}-{next(_count)}.sock"


class ShmListener:
    """A bound Unix socket.

    Parameters
    ----------
    uri : DataUri
        Its path is where to bind; without one a path of this process's own is taken.
    limits : Limits
        Bounds for the connections.
    users : frozenset of int
        The users that may connect, besides this one and root.
    """

    def __init__(self, uri: DataUri, limits: Limits, users: frozenset[int]) -> None:
        self._limits = limits
        self._users = users | {0, os.geteuid()}
        path = Path(uri.path) if uri.path.strip("/") else own_path()
        self.socket = _bound(path, 0o666 if users else 0o600)
        """The listening socket."""
        self._path = path
        self._inode = path.stat().st_ino
        handle = uri.remote_handle or secrets.token_bytes(HANDLE_BYTES)
        self.uri = uri.replace(path=str(path), remote_handle=handle)
        """The address, with the path that was bound and the id of the regions."""
        self.refused = 0
        """How many connections of other users were closed."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits."""
        return self.socket.fileno()

    def accept(self) -> ShmChannel | None:
        """Return the next client's channel, or None if none waits."""
        while True:
            try:
                sock, _ = self.socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            try:
                process, user = peer_user(sock)
                if user not in self._users:
                    self.refused += 1
                    sock.close()
                    continue
                return ShmChannel(
                    sock,
                    self._limits,
                    server=True,
                    peer=f"process {process} of user {user}",
                    staging=_SERVER_STAGING,
                )
            except OSError:  # it left already
                sock.close()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def _bound(path: Path, mode: int) -> socket.socket:
    """Bind a Unix socket; one that a dead server left is replaced.

    Raises
    ------
    ConfigError
        If that fails; the error names the path.
    """
    if len(os.fsencode(path)) > _MOST_PATH:
        raise ConfigError(
            f"cannot listen on {path}: a socket's path has {_MOST_PATH} bytes at most"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True)
        _check_folder(path.parent)
        try:
            _bind(sock, path, mode)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_dead(path):
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
    # The socket is closed to others from its first moment on: umask counts for all threads, but
    # only ever takes rights away.
    before = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    finally:
        os.umask(before)
    if mode != 0o600:
        path.chmod(mode)


def _check_folder(folder: Path) -> None:
    """Refuse the folder of this user, in a place open to all, if it is somebody else's."""
    if folder == runtime_folder() and folder.stat().st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{folder} belongs to another user: name a path, shm:///run/…/data.sock")


def _is_dead(path: Path) -> bool:
    if not stat.S_ISSOCK(path.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


class ShmTransport:
    """The scheme ``shm``.

    Parameters
    ----------
    users : frozenset of int
        The users that may connect to its listeners, besides this one and root.
    """

    scheme = "shm"
    capabilities = CAPABILITIES

    def __init__(self, users: frozenset[int] = frozenset()) -> None:
        self._users = users

    def listen(self, uri: DataUri, limits: Limits) -> ShmListener:
        """Bind an address; see `Transport.listen`."""
        _check(uri)
        return ShmListener(uri, limits, self._users)

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> ShmChannel:
        """Connect; see `Transport.connect`."""
        _check(uri)
        if not uri.path.strip("/"):
            raise UriError(f"{uri.redacted()}: an shm address needs the path of a socket")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(uri.path)
            return ShmChannel(
                sock,
                limits,
                server=False,
                peer=uri.path,
                region_tag=uri.want_data,
                handle=uri.remote_handle,
            )
        except TimeoutError:
            sock.close()
            raise ConnectError(
                f"cannot connect to shm://{uri.path}: no answer within {timeout:g} s"
            ) from None
        except OSError as error:
            sock.close()
            reason = error.strerror or str(error)
            raise ConnectError(f"cannot connect to shm://{uri.path}: {reason}") from None


def _check(uri: DataUri) -> None:
    if uri.host or uri.port is not None:
        raise UriError(f"{uri.redacted()}: an shm address has a path and no host: shm:///run/…")
    if uri.remote_handle is not None and len(uri.remote_handle) != HANDLE_BYTES:
        raise UriError(
            f"{uri.redacted()}: the remote_handle of an shm address has {HANDLE_BYTES} bytes"
        )


TRANSPORT = ShmTransport()
