"""A fetch from an address where nothing listens fails before it imports what reads data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.cli.connection import check_control_plane, connect_first
from splitarrow.errors import ConnectError

_FETCH = """
import sys
from splitarrow.cli.app import run
status = run(sys.argv[1:])
print([name for name in ("numpy", "pyarrow", "grpc") if name in sys.modules])
sys.exit(status)
"""


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("tcp://127.0.0.1:{port}?want_data=0x10000000001&ticket=d", "Connection refused"),
        ("tcp://127.0.0.1:{port}/d", "Connection refused"),
        (
            "grpc://127.0.0.1:{port}/d",
            "the connection was refused; check that the server runs, and the port",
        ),
    ],
)
def test_a_refused_fetch_imports_nothing_that_reads_data(
    uri: str, reason: str, closed_port: int, tmp_path: Path
) -> None:
    address = uri.format(port=closed_port)
    environment = {name: value for name, value in os.environ.items() if "_proxy" not in name}
    process = subprocess.run(
        [sys.executable, "-c", _FETCH, "fetch", address, "-o", str(tmp_path / "d.arrow")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert process.stdout == "[]\n"
    scheme = address.partition(":")[0]
    assert process.stderr == (
        f"splitarrow: error: cannot connect to {scheme}://127.0.0.1:{closed_port}: {reason}\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_fetch_makes_one_connection(tmp_path: Path) -> None:
    from splitarrow.cli.app import run

    table = pa.table({"n": [1, 2, 3]})
    with splitarrow.serve({"d": table}, listen=["tcp://127.0.0.1:0"]) as server:
        output = tmp_path / "d.arrow"
        assert run(["fetch", server.uri("d"), "-o", str(output), "--quiet"]) == 0
        assert server.stats()["connections_total"] == 1
    assert pa.ipc.open_file(str(output)).read_all() == table


def test_a_control_plane_behind_a_proxy_is_not_checked(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"grpc://127.0.0.1:{closed_port}"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    check_control_plane(uri, 10)
    monkeypatch.delenv("http_proxy")
    with pytest.raises(ConnectError, match=r"the connection was refused; check that the server"):
        check_control_plane(uri, 10)


@pytest.mark.parametrize(
    ("uris", "ticket"),
    [
        (["tcp://127.0.0.1:{port}?want_data=1"], None),  # no ticket
        (["tcp://127.0.0.1:{port}?ticket=d"], None),  # no tag
        (["tcp://127.0.0.1:{port}?want_data=1&ticket=d"], "d"),  # two tickets
        (["tcp://127.0.0.1:{port}?want_data=x"], None),
        (["shm:///{port}?want_data=1&ticket=d"], None),
        (["tcp://127.0.0.1:{port}?want_data=1&ticket=d"] * 2, None),
    ],
)
def test_what_is_not_a_complete_tcp_address_is_left_to_the_reader(
    uris: list[str], ticket: str | None, closed_port: int
) -> None:
    with connect_first([uri.format(port=closed_port) for uri in uris], ticket, 10):
        pass
