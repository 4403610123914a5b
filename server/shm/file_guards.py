"""Guards of mapped files: no other process changes a file until its readers have released it.

A process that reads a mapped file is killed by SIGBUS when another process truncates the file,
and reads torn data when another process overwrites it. So the server takes a file lease
(``fcntl(2)``, F_SETLEASE) on each file that it shares. A process that opens the file for writing
then blocks. The server notices, and revokes the file through the socket that each reader got with
it. A reader copies the pages that it still uses and closes its end. When all have, the server
gives up the file lease and the other process continues.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ...errors import DatasetError
from ...transport.memory.files import (
    SourceFile,
    describe_refusal,
    holds_file_lease,
    take_file_lease,
)
from ..logs import get_logger

_POLL_SECONDS = 0.05
_REVOCATION_SECONDS = 20.0
"""The time that readers have to release a file, less than the 45 s that the kernel waits."""


def guard_refusal(path: Path) -> str | None:
    """Return the reason why a file cannot be guarded, or None if it can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return error.strerror
    try:
        take_file_lease(descriptor)
    except OSError as error:
        return describe_refusal(error)
    finally:
        os.close(descriptor)  # which gives up the file lease
    return None


@dataclass(eq=False)
class _Guard:
    """The file lease on one version of a file."""

    path: Path | str
    descriptor: int
    readers: list[socket.socket] = field(default_factory=lambda: list[socket.socket]())
    """The server's ends of the revocation sockets."""
    expires_at: float | None = None
    """When the file lease is given up at the latest; None while no process wants to write."""

    def close(self) -> None:
        """Give up the file lease."""
        os.close(self.descriptor)
        for reader in self.readers:
            reader.close()


class FileGuards:
    """The file guards of one server. Used on its event loop only."""

    def __init__(self) -> None:
        self._guards: dict[tuple[int | str, ...], _Guard] = {}
        self._has_guards = anyio.Event()
        self._log = get_logger("guards")

    def guard(self, file: SourceFile) -> socket.socket:
        """Guard a file for one more reader.

        Returns
        -------
        socket.socket
            The reader's end of the revocation socket. The caller hands it to the reader and
            closes its own copy. At its end of file the reader has to release the file, and
            closes the socket when it has. See `splitarrow.transport.memory.mapped_region`.

        Raises
        ------
        DatasetError
            If the file cannot be guarded, or another process waits to write to it.
        """
        guard = self._guards.get(file.version)
        if guard is None:
            descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                take_file_lease(descriptor)
            except OSError as error:
                os.close(descriptor)
                reason = describe_refusal(error)
                raise DatasetError(f"cannot share {file.path}: {reason}") from None
            guard = self._guards[file.version] = _Guard(file.path, descriptor)
            self._has_guards.set()
        if guard.expires_at is not None:
            raise DatasetError(f"cannot share {file.path}: another process is about to change it")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        guard.readers.append(ours)
        return theirs

    async def run(self) -> None:
        """Revoke files and give up file leases when necessary, until cancelled."""
        try:
            while True:
                await self._has_guards.wait()
                while self._guards:
                    await anyio.sleep(_POLL_SECONDS)
                    self._poll(anyio.current_time())
                self._has_guards = anyio.Event()
        finally:
            for guard in self._guards.values():
                guard.close()
            self._guards.clear()

    def _poll(self, now: float) -> None:
        for version, guard in list(self._guards.items()):
            guard.readers = list(_connected(guard.readers))
            if guard.expires_at is None and not holds_file_lease(guard.descriptor):
                self._log.warning(
                    "revoking a shared file: another process is about to change it",
                    path=str(guard.path),
                )
                guard.expires_at = now + _REVOCATION_SECONDS
                for reader in guard.readers:
                    with contextlib.suppress(OSError):
                        reader.shutdown(socket.SHUT_WR)
            expired = guard.expires_at is not None and now > guard.expires_at
            if expired or not guard.readers:
                del self._guards[version]
                guard.close()


def _connected(readers: Iterable[socket.socket]) -> Iterable[socket.socket]:
    """Yield the sockets of readers that still map the file; close the others."""
    for reader in readers:
        try:
            if reader.recv(1):
                yield reader
                continue
        except BlockingIOError:
            yield reader
            continue
        except OSError:
            pass
        reader.close()
