"""What doctor finds out about a server: locations, certificates, clocks, and the transport."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.pki import Pki
from splitarrow.cli.app import run
from splitarrow.cli.reachability import check_servers, describe_server

TABLE = pa.table({"n": [1, 2, 3]})
LARGE = pa.table({"n": pa.array(np.zeros(1 << 16))})
Check = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Return the state of one server."""

    def check(uri: str | None, token: str | None = None, ca: Path | None = None) -> dict[str, Any]:
        if ca is not None:
            monkeypatch.setenv("SPLITARROW_TLS_CA", str(ca))
        assert uri is not None
        (server,) = check_servers(uri, token, 10.0)
        return server

    return check


def lines(server: dict[str, Any], version: str | None = None) -> dict[str, tuple[str, str]]:
    """Return the ratings and texts of the lines about a server, by name."""
    found = describe_server(server, version)
    return {line.name.strip(): (line.rating, line.text) for line in found}


def by_scheme(server: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {location["scheme"]: location for location in server["locations"]}


def serve(*listen: str, control: str = "grpc", **settings: Any) -> splitarrow.Server:
    return splitarrow.serve(
        {"a": LARGE, "b": TABLE, "tensor": np.zeros((2, 3))},
        listen=[f"{scheme}://127.0.0.1:0" for scheme in listen],
        control=f"{control}://127.0.0.1:0",
        **settings,
    )


def test_every_location_is_read_and_the_first_one_that_works_is_chosen(check: Check) -> None:
    with serve("tcp", advertise={"tcp": "127.0.0.1:1", "grpc": "data.example:30015"}) as server:
        found = check(server.control_uri)
    locations = by_scheme(found)
    assert list(locations) == ["tcp", "flight"]
    assert locations["flight"]["reachable"]
    assert not locations["tcp"]["reachable"]
    assert "refused" in locations["tcp"]["reason"]
    assert "--advertise" in locations["tcp"]["advice"]
    assert found["auto"]["transport"] == "flight"
    assert "not tcp" in found["auto"]["reason"]
    assert found["advertised"] == {"control": "grpc://data.example:30015"}
    shown = lines(found, "0.0.1")
    assert shown["tcp"][0] == "note"
    assert shown["tcp"][1].startswith("tcp://127.0.0.1:1: cannot connect")
    assert shown["flight"] == ("good", shown["flight"][1])
    assert "this client is 0.0.1" in shown[found["uri"]][1]
    assert shown["control"][1] == "advertised as grpc://data.example:30015"


def test_the_uri_may_name_a_dataset(check: Check) -> None:
    with serve("tcp") as server:
        for name in ("b", "tensor"):
            found = check(f"{server.control_uri}/{name}")
            assert (found["dataset"], found["auto"]["transport"]) == (name, "tcp")
            assert by_scheme(found)["tcp"]["reachable"]
        found = check(f"{server.control_uri}/absent")
        assert run(["doctor", f"{server.control_uri}/absent"]) == 1
    assert found["reachable"]
    assert "no dataset 'absent'" in found["auto"]["reason"]
    assert lines(found)["transport auto"][0] == "bad"


def test_a_pair_of_listeners_is_one_location(check: Check) -> None:
    listen = ["tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"]
    with splitarrow.serve({"a": LARGE}, listen=listen, control="grpc://127.0.0.1:0") as server:
        tcp = by_scheme(check(server.control_uri))["tcp"]
    assert tcp["reachable"]
    assert len(tcp["uris"]) == 2


def test_a_ticket_for_one_use_is_no_obstacle(check: Check, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    token = "the-secret-token-of-anna"
    tokens.write_text(f'[[tokens]]\nname = "anna"\ntoken = "{token}"\ndatasets = ["*"]\n')
    tokens.chmod(0o600)
    with serve("tcp", token_file=tokens) as server:
        found = check(server.control_uri, token)
        assert token not in json.dumps(found)
        assert all(location["reachable"] for location in found["locations"])
        refused = check(server.control_uri, "another-token-that-is-unknown")
    assert not refused["reachable"]


def test_certificates_are_shown_whether_or_not_they_are_trusted(check: Check, pki: Pki) -> None:
    with serve("tcp+tls", control="grpc+tls", tls_cert=pki.path("server")) as server:
        stranger = check(server.control_uri)
        found = check(server.control_uri, ca=pki.path("ca"))
    assert not stranger["reachable"]
    for tls, verified in ((stranger["tls"], False), (found["tls"], True)):
        assert (tls["verified"], tls["version"]) == (verified, "TLSv1.3")
        assert tls["issuer"]
        assert tls["expires"] > "2026"
    assert "unable to get local issuer" in stranger["tls"]["reason"]
    assert "not verified: " in lines(stranger)["TLS"][1]
    assert lines(found)["TLS"][1].endswith("; verified")
    assert by_scheme(found)["tcp+tls"]["tls"]["verified"]


def test_the_clocks_are_compared(check: Check) -> None:
    before = time.time()
    with serve("tcp") as server:
        found = check(server.control_uri)
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            assert before - 1 < client.status()["time"] < time.time() + 1
    assert abs(found["clock"]["ahead_seconds"]) <= found["clock"]["error_seconds"] + 0.01
    assert lines(found)["clock"][0] == "good"
    for ahead, error, expected in (
        (3.5, 0.1, "3.50 s ahead of ours: tokens and tickets may be refused"),
        (-9.0, 0.1, "9.00 s behind ours"),
        (3.5, 1.0, "within 4.50 s of ours"),
    ):
        found["clock"] = {"ahead_seconds": ahead, "error_seconds": error}
        rating, text = lines(found)["clock"]
        assert text.startswith(expected)
        assert rating == ("good" if "within" in expected else "note")
    found["clock"] = None  # an older server
    assert "clock" not in lines(found)


@pytest.fixture
def two() -> Iterator[str]:
    with serve("tcp") as one, serve("tcp") as other:
        ports = [str(uri).rpartition(":")[2] for uri in (one.control_uri, other.control_uri)]
        yield f"grpc://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"


def test_each_of_several_daemons_is_checked(two: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json", two]) == 0
    servers = json.loads(capsys.readouterr().out)["servers"]
    assert [server["auto"]["transport"] for server in servers] == ["tcp", "tcp"]
    assert len({server["uri"] for server in servers}) == 2
