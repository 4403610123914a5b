"""File leases: the kernel's word that no process can write to a file.

A read lease (``fcntl(2)``, F_SETLEASE) is refused while any process has the file open for writing
or maps it for writing, even if its descriptor is closed. Afterwards, a process that opens the file
for writing or truncates it waits until the lease is given up, for at most the time in
``/proc/sys/fs/lease-break-time``. Modification times do not give that protection: a process that
maps a file and has already written to a page changes it again without a new modification time.

Leases exist on local file systems, for files of this process's user; a process with CAP_LEASE gets
them for every file. A lease belongs to an open file description: descriptors that were duplicated
or passed to another process share it.
"""

from __future__ import annotations

import fcntl
import signal

_F_SETSIG = 10


def take_file_lease(descriptor: int) -> None:
    """Take a read lease on a file, which is open for reading.

    Raises
    ------
    BlockingIOError
        If a process has the file open for writing, or waits to open it.
    OSError
        If there are no leases on this file; see `describe_refusal`.
    """
    # The kernel reports a conflicting open by a signal. Its default, SIGIO, ends the process;
    # SIGURG is ignored.
    fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def drop_file_lease(descriptor: int) -> None:
    """Give a lease up, even if other descriptors share it. No lease is no error."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        pass  # the kernel has taken it away


def holds_file_lease(descriptor: int) -> bool:
    """Return whether a lease holds, and no process waits to write to the file."""
    return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK


def describe_refusal(error: OSError) -> str:
    """Return the reason why the kernel refused a lease."""
    if isinstance(error, BlockingIOError):
        return "another process has it open for writing"
    if isinstance(error, PermissionError):
        return "it belongs to another user, and the server lacks CAP_LEASE"
    return f"its file system does not support file leases ({error.strerror})"
