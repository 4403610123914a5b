"""Connections to the daemons of a cluster: made once, on demand, and closed together."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from splitarrow.client.cluster import client as daemons
from splitarrow.client.cluster.client import ClusterClient, DaemonConnection, DaemonPool
from splitarrow.client.tokens import FixedToken
from splitarrow.client.uris import parse_control_uri
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    DeniedError,
    NotFoundError,
    SplitArrowError,
    UsageError,
)


class Client:
    """A client that records its time limit, and cannot connect to a host named ``down``."""

    made: list[Client]

    def __init__(self, uri: Any, token: str | None, *, connect_timeout: float, **_: Any) -> None:
        self.uri, self.token, self.connect_timeout = uri, token, connect_timeout
        self.is_closed = False
        self.made.append(self)
        if uri.host.startswith("down"):
            raise ConnectError(f"no {uri.host}")
        if uri.host == "denied":
            raise DeniedError("no token")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The clients that were made."""
    Client.made = []
    monkeypatch.setattr(daemons, "Client", Client)
    return Client.made


def connection(host: str = "a", connect_timeout: float = 9.0) -> DaemonConnection:
    return DaemonConnection(
        parse_control_uri(f"grpc://{host}"),
        FixedToken("token"),
        tls=None,
        connect_timeout=connect_timeout,
        timeout=5.0,
    )


def test_a_connection_is_made_once(made: list[Client]) -> None:
    daemon = connection()
    assert made == []
    client: Any = daemon.client()
    assert daemon.client() is client
    assert (made, client.token, daemon.address) == ([client], FixedToken("token"), "grpc://a:8815")
    daemon.close()
    daemon.close()
    assert client.is_closed
    with pytest.raises(ClosedError, match="the client of grpc://a:8815 is closed"):
        daemon.client()
    connection().close()


@pytest.mark.parametrize(("first", "later"), [(9.0, 2.0), (0.5, 0.5)])
def test_a_daemon_that_was_down_gets_less_time(
    made: list[Client], first: float, later: float
) -> None:
    daemon = connection("down", first)
    for _ in range(3):
        with pytest.raises(ConnectError):
            daemon.client()
    assert [client.connect_timeout for client in made] == [first, later, later]


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("[::1]", True),
        ("127.0.0.9", True),
        (socket.gethostname(), True),
        ("128.0.0.1", False),
        ("elsewhere", False),
    ],
)
def test_daemons_on_this_host_are_recognized(host: str, is_local: bool) -> None:
    assert connection(host).is_local == is_local


def test_a_call_returns_the_result_or_the_error_of_each_daemon() -> None:
    pool = DaemonPool([connection("a"), connection("down"), connection("b")])

    def get_host(client: Any) -> str:
        return client.uri.host

    results = pool.call_all(get_host)
    assert list(results) == ["grpc://a:8815", "grpc://down:8815", "grpc://b:8815"]
    found = [type(each) if isinstance(each, SplitArrowError) else each for each in results.values()]
    assert found == ["a", ConnectError, "b"]
    assert pool.failures.keys() == {"grpc://down:8815"}

    def find(client: Any) -> None:
        raise NotFoundError("no dataset 'trips'")

    results = pool.call_all(find)
    assert isinstance(results["grpc://a:8815"], NotFoundError)
    assert pool.failures.keys() == {"grpc://down:8815"}

    def misuse(client: Any) -> None:
        raise UsageError("wrong")

    with pytest.raises(UsageError, match="wrong"):
        pool.call_all(misuse)
    pool.close()
    pool.close()
    with pytest.raises(ClosedError, match="grpc://a:8815,grpc://down:8815,grpc://b:8815 is closed"):
        pool.call_all(lambda client: None)


def list_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("splitarrow-cluster")}


def test_a_pool_is_closed_without_waiting_for_its_calls() -> None:
    pool = DaemonPool([connection("a"), connection("b")])
    # Both calls, because a pool that is closed between them refuses the second.
    all_begun, released = threading.Barrier(3), threading.Event()

    def wait(client: Any) -> bool:
        all_begun.wait(60)
        return released.wait(60)

    caller = threading.Thread(target=pool.call_all, args=(wait,))
    before = list_threads()
    caller.start()
    all_begun.wait(60)
    pool.close()
    assert caller.is_alive()
    started = list_threads() - before
    assert started
    released.set()
    caller.join()
    for each in started:
        each.join(60)
        assert not each.is_alive()


def test_a_call_whose_pool_is_closed_meanwhile_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = DaemonPool([connection("a"), connection("b")])
    submit = pool._executor.submit

    def close_first(*arguments: Any) -> Any:
        pool.close()
        return submit(*arguments)

    monkeypatch.setattr(pool._executor, "submit", close_first)
    with pytest.raises(ClosedError, match="grpc://a:8815,grpc://b:8815 is closed"):
        pool.call_all(lambda client: None)


def test_a_cluster_that_cannot_be_used_leaves_no_threads() -> None:
    before = list_threads()
    with pytest.raises(ConnectError):
        cluster("down", "down2")
    for each in list_threads() - before:
        each.join(60)
        assert not each.is_alive()


def cluster(*hosts: str) -> ClusterClient:
    return ClusterClient([parse_control_uri(f"grpc://{host}") for host in hosts])


def test_a_cluster_needs_one_daemon_that_responds(made: list[Client]) -> None:
    with cluster("a", "down") as client:
        assert client.uris == ["grpc://a:8815", "grpc://down:8815"]
        assert client.uri == "grpc://a:8815,grpc://down:8815"
        assert client.absent.keys() == {"grpc://down:8815"}
        assert client.at("grpc://a:8815") is made[0]
        with pytest.raises(UsageError, match="grpc://c is not a daemon of this cluster; expected"):
            client.at("grpc://c")
    assert made[0].is_closed
    with pytest.raises(ConnectError) as caught:
        cluster("down", "down2")
    assert "no down" in str(caught.value)
    assert "no down2" in str(caught.value)
    with pytest.raises(DeniedError):
        cluster("denied")
