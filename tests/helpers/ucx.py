"""Both ends of a UCX connection, and programs that use UCX."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.base import Channel, ConnectOptions, Listener
from splitarrow.transport.registry import find_transport
from splitarrow.transport.ucx.channel import UcxReaderChannel, UcxServerChannel

ADDRESS = "ucx://127.0.0.1:0"


def connect_pair(
    listener: Listener, uri: DataUri, limits: Limits
) -> tuple[UcxReaderChannel, UcxServerChannel]:
    """Connect to a listener and close it; return the client's channel and the server's."""
    accepted: list[Channel] = []
    stop = threading.Event()

    def accept() -> None:
        while not stop.is_set():
            channel = None if accepted else listener.accept()
            if channel is not None:
                accepted.append(channel)
            for channel in accepted:
                channel.receive_some()  # nothing arrives: this makes progress
            time.sleep(0.001)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        client = find_transport(DataUri("ucx")).connect(
            uri, ConnectOptions(limits=limits, timeout=5)
        )
    finally:
        stop.set()
        thread.join()
        listener.close()
    server = accepted[0]
    assert isinstance(client, UcxReaderChannel)
    assert isinstance(server, UcxServerChannel)
    return client, server


def transfer(sender: Channel, frames: list[Any], receiver: Channel, count: int) -> list[Any]:
    """Send frames and receive `count` of them at the other end, on one thread."""
    got: list[Any] = []
    sender.queue(frames)
    sent = False
    deadline = time.monotonic() + 10
    while not sent or len(got) < count:
        sent = sent or sender.send_some()
        assert sender.receive_some() == []  # makes progress
        got += receiver.receive_some()
        assert time.monotonic() < deadline
    return got


def program(text: str, argument: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
