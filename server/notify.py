"""Notifications for systemd services of ``Type=notify``: sd_notify(3), without its library."""

from __future__ import annotations

import os
import socket

_SOCKET = "NOTIFY_SOCKET"
_WATCHDOG_TIMEOUT = "WATCHDOG_USEC"
_WATCHDOG_PID = "WATCHDOG_PID"


def notify(state: str) -> bool:
    """Send a state such as ``READY=1`` to the service manager.

    Returns
    -------
    bool
        Whether it was sent. False if there is no service manager or it does not read: neither
        is a reason to stop serving.
    """
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket, which has no file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """Return the interval for sending ``WATCHDOG=1``, or None if this process has no watchdog.

    It is half of the watchdog's timeout, in seconds.
    """
    timeout = os.environ.get(_WATCHDOG_TIMEOUT, "")
    pid = os.environ.get(_WATCHDOG_PID, "")
    if not (timeout.isascii() and timeout.isdigit() and int(timeout)):
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(timeout) / 2_000_000
