"""Relay processes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import splitarrow
from helpers.daemons import StartDaemon, find_free_network
from splitarrow.testing import Daemon

CONTROL = "grpc://127.0.0.1:0"


def start_relay(
    folder: Path, upstream: Daemon | str, daemon: StartDaemon, *arguments: str, **settings: Any
) -> Daemon:
    """Start a relay whose cache is in a folder."""
    uri = upstream if isinstance(upstream, str) else upstream.control_uri
    options = ["--cache", str(folder / "cache"), *arguments]
    settings = {
        "listen": ["tcp://127.0.0.1:0", "shm://"],
        "poll_seconds": 0.2,
        "control": CONTROL,
        **settings,
    }
    return daemon(upstream=uri, arguments=options, **settings)


def sent_bytes(server: Daemon, name: str, token: str | None = None) -> int:
    """Return the bytes of a dataset that a server has sent."""
    with splitarrow.connect(str(server.control_uri), token) as client:
        return client.status()["sent"].get(name, {}).get("bytes", 0)


def find_addresses(number: int) -> list[str]:
    """Return addresses for control planes, at a host that no other test uses."""
    host = f"{find_free_network()}.1"
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((host, 0))) for _ in range(number)]
        return [f"grpc://{host}:{each.getsockname()[1]}" for each in sockets]
