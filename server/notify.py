"""What systemd wants to know of a service of ``Type=notify``, without a library."""

from __future__ import annotations

import os
import socket

_SOCKET = "NOTIFY_SOCKET"
_INTERVAL = "WATCHDOG_USEC"
_PROCESS = "WATCHDOG_PID"


def notify(state: str) -> bool:
    """Tell the service manager something, such as ``READY=1``, if there is one.

    Returns
    -------
    bool
        Whether it was told. A manager that cannot be reached is no reason to stop serving.
    """
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket, which no file stands for
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """Return how often to say ``WATCHDOG=1``: twice as often as is due; None: never."""
    due = os.environ.get(_INTERVAL, "")
    process = os.environ.get(_PROCESS, "")
    if not (due.isascii() and due.isdigit() and int(due)):
        return None
    if process and process != str(os.getpid()):
        return None
    return int(due) / 2_000_000
