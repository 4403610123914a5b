"""Files that readers map are guarded: nobody changes them before the readers have let go.

A process that reads a mapped file which another truncates is killed by SIGBUS; one that is
overwritten shows torn data. So the server takes a lease on each file that it hands over
(``fcntl(2)``, F_SETLEASE): whoever opens it for writing, or truncates it, then waits. The
server notices, tells the readers through a socket that went along with the file, and gives the
lease up once each has moved what it still uses into memory of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ...errors import DatasetError
from ...transport.regions import RegionFile
from ..logs import get_logger

_F_SETSIG = 10
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 20.0
"""How long readers may take to let go: less than the kernel's own 45 s."""


def lease_refusal(path: Path) -> str | None:
    """Return why a file cannot be guarded; None if it can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return error.strerror
    try:
        _take_lease(descriptor)
    except OSError as error:
        return _reason(error)
    finally:
        os.close(descriptor)  # which gives the lease up
    return None


def _reason(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return "another process has it open for writing"
    if isinstance(error, PermissionError):
        return "it belongs to another user, and the server lacks CAP_LEASE"
    return f"its file system has no leases ({error.strerror})"


def _take_lease(descriptor: int) -> None:
    # By default the kernel tells of a break with SIGIO, which ends a process; SIGURG does not.
    fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)


@dataclass(eq=False)
class _Guarded:
    """A file under a lease."""

    path: Path
    descriptor: int
    watchers: list[socket.socket] = field(default_factory=lambda: list[socket.socket]())
    breaks_at: float | None = None
    """When the lease is given up at the latest, once somebody wants to change the file."""

    def close(self) -> None:
        os.close(self.descriptor)
        for watcher in self.watchers:
            watcher.close()


class FileGuards:
    """The leases of one daemon. Used on its event loop only."""

    def __init__(self) -> None:
        self._guarded: dict[tuple[int, ...], _Guarded] = {}
        self._wanted = anyio.Event()
        self._log = get_logger("guards")

    def watch(self, file: RegionFile) -> socket.socket:
        """Guard a file for one more reader.

        Returns
        -------
        socket.socket
            What goes to the reader along with the file. The end of it means: let go; the
            reader closes it when it has.

        Raises
        ------
        DatasetError
            If the file cannot be guarded, or is about to be changed.
        """
        guarded = self._guarded.get(file.version)
        if guarded is None:
            descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _take_lease(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise DatasetError(f"cannot share {file.path}: {_reason(error)}") from None
            guarded = self._guarded[file.version] = _Guarded(file.path, descriptor)
            self._wanted.set()
        if guarded.breaks_at is not None:
            raise DatasetError(f"{file.path} is about to be changed by another process")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        guarded.watchers.append(ours)
        return theirs

    async def run(self) -> None:
        """Look after the leases, until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                while self._guarded:
                    await anyio.sleep(_LOOK_SECONDS)
                    self._look(anyio.current_time())
                self._wanted = anyio.Event()
        finally:
            for guarded in self._guarded.values():
                guarded.close()
            self._guarded.clear()

    def _look(self, now: float) -> None:
        for version, guarded in list(self._guarded.items()):
            guarded.watchers = list(_alive(guarded.watchers))
            if guarded.breaks_at is None and _is_breaking(guarded.descriptor):
                self._log.warning(
                    "a file that readers map is about to be changed", path=str(guarded.path)
                )
                guarded.breaks_at = now + _PATIENCE_SECONDS
                for watcher in guarded.watchers:
                    with contextlib.suppress(OSError):
                        watcher.shutdown(socket.SHUT_WR)
            if not guarded.watchers or (guarded.breaks_at is not None and now > guarded.breaks_at):
                del self._guarded[version]
                guarded.close()


def _is_breaking(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK


def _alive(watchers: Iterable[socket.socket]) -> Iterable[socket.socket]:
    """Yield the watchers whose readers still map the file; close the others."""
    for watcher in watchers:
        try:
            if watcher.recv(1):
                yield watcher
                continue
        except BlockingIOError:
            yield watcher
            continue
        except OSError:
            pass
        watcher.close()
