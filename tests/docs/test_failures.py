"""The messages of docs/failures.md are those that people get."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme

import splitarrow
from helpers.daemons import find_free_port
from helpers.package import ROOT
from splitarrow.errors import SplitArrowError
from splitarrow.transport.grpc_usage import GrpcUsage

ENTRIES = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "failures.md").read_text(), re.MULTILINE)
TABLE = pa.table({"delay": [1, 70]})


def assert_listed(fail: Callable[[], object]) -> None:
    """Assert that a call raises an error whose message the page lists."""
    with pytest.raises(SplitArrowError) as caught:
        fail()
    messages = [message for entry in ENTRIES for message in re.findall(r"`([^`]+)`", entry)]
    patterns = [re.escape(message).replace("…", ".*") for message in messages]
    assert any(re.search(pattern, str(caught.value)) for pattern in patterns), str(caught.value)


@pytest.fixture
def server() -> Iterator[splitarrow.Server]:
    with splitarrow.serve({"flights": TABLE}, control="grpc://127.0.0.1:0") as server:
        yield server


def list_datasets(uri: str, connect_timeout: float = 10) -> None:
    with splitarrow.connect(uri, connect_timeout=connect_timeout) as client:
        client.datasets()


@pytest.mark.slow
def test_nothing_listens_or_responds() -> None:
    port = find_free_port()
    assert_listed(lambda: list_datasets(f"grpc://127.0.0.1:{port}"))
    assert_listed(lambda: splitarrow.open(f"tcp://127.0.0.1:{port}/flights"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert_listed(lambda: list_datasets(f"grpc://127.0.0.1:{port}", connect_timeout=1))
        assert_listed(lambda: splitarrow.open(f"tcp://127.0.0.1:{port}/flights", stall_timeout=1))


def test_the_wrong_port(server: splitarrow.Server) -> None:
    data, control = server.uri("flights").partition("?")[0], str(server.control_uri)
    assert_listed(lambda: list_datasets(data.replace("tcp", "grpc")))
    assert_listed(lambda: splitarrow.open(f"{control.replace('grpc', 'tcp')}/flights"))


def test_tls(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    with splitarrow.serve(
        {"flights": TABLE}, control="grpc+tls://127.0.0.1:0", tls_cert=tmp_path / "server.pem"
    ) as server:
        uri = str(server.control_uri)
        assert_listed(lambda: list_datasets(uri.replace("+tls", "")))
        assert_listed(lambda: list_datasets(uri))


def test_a_file_as_tls() -> None:
    files: Any = {"tls": "server.pem"}
    assert_listed(lambda: splitarrow.connect("grpc+tls://127.0.0.1:1", **files))


def test_a_fork() -> None:
    usage = GrpcUsage(frozenset, has_fork_support=False)
    usage.is_blocked = True
    assert_listed(usage.check_process)


def test_no_token(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[tokens]]\nname = "a"\ntoken = "a-token-of-a-test"\ndatasets = ["*"]\n')
    tokens.chmod(0o600)
    with splitarrow.serve({}, control="grpc://127.0.0.1:0", token_file=tokens) as server:
        assert_listed(lambda: list_datasets(str(server.control_uri)))


def test_reading(server: splitarrow.Server) -> None:
    with splitarrow.connect(str(server.control_uri)) as client:
        assert_listed(lambda: client["flihgts"].to_arrow())
        assert_listed(lambda: client["flights"].to_arrow(filter="dely > 60"))
        assert_listed(lambda: client["flights"].to_arrow(filter="delay > 60 having"))
    stream = splitarrow.open(server.uri("flights"))
    stream.read_all()
    assert_listed(stream.read_all)


def test_serving(server: splitarrow.Server, tmp_path: Path) -> None:
    taken = server.uri("flights").partition("?")[0]
    assert_listed(lambda: splitarrow.serve({"flights": TABLE}, listen=taken))
    misspelled = {"worker": 2}
    assert_listed(lambda: splitarrow.serve({"flights": TABLE}, **misspelled))  # pyright: ignore
    (tmp_path / "flights.bin").write_bytes(b"hello world" * 10)
    assert_listed(lambda: splitarrow.serve({"flights": tmp_path / "flights.bin"}))
