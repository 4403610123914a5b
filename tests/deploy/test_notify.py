"""What a service manager is told."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from helpers.service_manager import PATIENCE, Manager
from splitarrow.server.process import notify, watchdog_seconds


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(PATIENCE)
        yield receiver


def test_a_socket_in_the_file_system(
    receiver: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "notify"))
        receiver.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        assert notify("READY=1")
        assert receiver.recv(4096) == b"READY=1"


def test_an_abstract_socket(receiver: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.bind("")
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + receiver.getsockname()[1:].decode())
    assert notify("READY=1\nSTATUS=größer")
    assert receiver.recv(4096).decode() == "READY=1\nSTATUS=größer"


@pytest.mark.parametrize("address", [None, "", "relative", "/nowhere/notify", "@nobody", "/" * 200])
def test_nobody_listens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if address is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


def test_a_manager_that_does_not_read_blocks_nobody(
    receiver: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.bind("")
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + receiver.getsockname()[1:].decode())
    assert not all(notify("WATCHDOG=1") for _ in range(100_000))


@pytest.mark.parametrize(
    ("due", "process", "seconds"),
    [
        ("30000000", None, 15.0),
        ("30000000", "own", 15.0),
        ("30000000", "1", None),
        ("0", None, None),
        ("", None, None),
        ("-5", None, None),
        ("soon", None, None),
        (None, None, None),
    ],
)
def test_how_often_the_watchdog_is_told(
    due: str | None, process: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "WATCHDOG_USEC": due,
        "WATCHDOG_PID": str(os.getpid()) if process == "own" else process,
    }
    for name, value in given.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert watchdog_seconds() == seconds


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_daemon_tells_that_it_is_ready_alive_and_stopping(
    manager: Manager, data: Path, workers: str
) -> None:
    process = manager.start(
        "serve",
        str(data / "flights.arrow"),
        "--listen=tcp://127.0.0.1:0",
        f"--workers={workers}",
        environment={"WATCHDOG_USEC": "20000"},
    )
    manager.wait_for("READY=1")
    manager.wait_for("WATCHDOG=1")
    manager.wait_for("WATCHDOG=1")
    process.send_signal(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
