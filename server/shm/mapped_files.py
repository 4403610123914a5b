"""Mapped files, and the guards that protect them from changes.

A process that reads a mapped file is killed by SIGBUS when another process truncates the file,
and reads torn data when another process overwrites it. So the server takes a file lease
(``fcntl(2)``, F_SETLEASE) on each file that it shares. A process that opens the file for
writing then blocks. The server notices, and revokes the file through the socket that each
reader got with it. A reader copies the pages that it still uses and closes its end. When all
have, the server gives up the file lease and the other process continues.

A guard also protects the files that the server maps itself: before such a file changes, the
server copies the pages in use into memory of this process, at the same addresses.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ...errors import DatasetError, LimitError, exhausted_error
from ...transport.memory.files import (
    SourceFile,
    describe_refusal,
    holds_file_lease,
    take_file_lease,
)
from ...transport.memory.mapped_region import MappedRegion
from ...transport.memory.sealed import SealedMemory
from ..logs import get_logger

_Version = tuple[int | str, ...]
"""What identifies the state of a file; see `SourceFile.version`."""

_GUARD_POLL_SECONDS = 0.05
_REVOCATION_SECONDS = 20.0
"""The time that readers have to release a file, less than the 45 s that the kernel waits."""
_MAX_MAPPINGS = 64
_MAX_REFUSALS = 10_000
_IDLE_SECONDS = 10.0
_MAPPING_POLL_SECONDS = 2.0


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
    is_own: bool
    """Whether there is no lease, because this process alone writes to the file."""
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
        self._guards: dict[_Version, _Guard] = {}
        self._has_guards = anyio.Event()
        self._log = get_logger("guards")

    def guard(self, file: SourceFile) -> socket.socket:
        """Guard a file for one more reader, and return the reader's revocation socket.

        The caller hands it to the reader and closes its own copy. At the end of file of the socket,
        the reader has to release the region, and then closes the socket. Raises `DatasetError` if
        the file cannot be guarded, or another process waits to write to it.
        """
        guard = self._guards.get(file.version)
        if guard is None:
            descriptor = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not file.is_own:
                    take_file_lease(descriptor)
            except OSError as error:
                os.close(descriptor)
                reason = describe_refusal(error)
                raise DatasetError(f"cannot share {file.path}: {reason}") from None
            guard = self._guards[file.version] = _Guard(file.path, descriptor, file.is_own)
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
                    await anyio.sleep(_GUARD_POLL_SECONDS)
                    self._poll(anyio.current_time())
                self._has_guards = anyio.Event()
        finally:
            for guard in self._guards.values():
                guard.close()
            self._guards.clear()

    def _poll(self, now: float) -> None:
        for version, guard in list(self._guards.items()):
            guard.readers = list(_connected(guard.readers))
            is_safe = guard.is_own or holds_file_lease(guard.descriptor)
            if guard.expires_at is None and not is_safe:
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


class FileMappings:
    """The mappings of one server. Used on its event loop only.

    A mapping stays for `_IDLE_SECONDS` after its last use, because entering its pages into the
    page tables costs more than sending them.
    """

    def __init__(self, guards: FileGuards, *, trust: bool) -> None:
        self._guards = guards
        self._trust = trust
        self._mappings: OrderedDict[_Version, tuple[MappedRegion, float]] = OrderedDict()
        self._refused: set[_Version] = set()
        self._log = get_logger("mappings")

    def map(self, file: SourceFile) -> MappedRegion | None:
        """Return the mapping of a file, or None if it cannot be mapped or is about to change.

        The mapping is shared with other callers. It lives as long as any of them refers to it.
        """
        now = anyio.current_time()
        known = self._mappings.pop(file.version, None)
        region = None if known is None else known[0]
        if region is None and file.version not in self._refused:
            region = self._new_mapping(file)
        if region is None:
            return None
        try:
            region.check()
        except DatasetError:
            return None
        self._mappings[file.version] = (region, now)
        while len(self._mappings) > _MAX_MAPPINGS:
            self._mappings.popitem(last=False)
        return region

    def _new_mapping(self, file: SourceFile) -> MappedRegion | None:
        revocation = -1
        try:
            if not self._trust and not isinstance(file, SealedMemory):
                revocation = self._guards.guard(file).detach()
            descriptor, owned_by_region = os.dup(file.fileno()), revocation
            revocation = -1
            return MappedRegion(descriptor, file.size, owned_by_region)
        except (DatasetError, LimitError, OSError) as error:
            if revocation >= 0:
                with contextlib.suppress(OSError):
                    os.close(revocation)
            if exhausted_error(error) is None:  # otherwise a later attempt may succeed
                if len(self._refused) > _MAX_REFUSALS:
                    self._refused.clear()
                self._refused.add(file.version)
            self._log.warning(
                "reading a file that cannot be mapped", path=str(file.path), reason=str(error)
            )
            return None

    async def run(self) -> None:
        """Drop idle mappings until cancelled."""
        try:
            while True:
                await anyio.sleep(_MAPPING_POLL_SECONDS)
                oldest = anyio.current_time() - _IDLE_SECONDS
                while self._mappings and next(iter(self._mappings.values()))[1] < oldest:
                    self._mappings.popitem(last=False)
        finally:
            self._mappings.clear()
