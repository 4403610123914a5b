"""The issuer of a server's tokens, as clients find it before they have one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.access_tokens import AUDIENCE, ISSUER, TokenIssuer
from splitarrow.formats.flight_data import ISSUER_REQUEST
from splitarrow.server.auth.issuer import METADATA_PATH, describe_issuer
from splitarrow.server.config import load_settings
from splitarrow.server.embedded import Server

TABLE = pa.table({"n": [1]})
EXPECTED = {
    "authorization_servers": [ISSUER],
    "bearer_methods_supported": ["header"],
    "scopes_supported": ["openid", "offline_access"],
    "splitarrow_audience": AUDIENCE,
    "splitarrow_client_id": "cli",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = TokenIssuer(tmp_path).settings(
        oauth_client_id="cli", oauth_scope="openid offline_access"
    )
    settings |= {"control": "grpc://127.0.0.1:0", "http": "http://127.0.0.1:0"}
    with splitarrow.serve({"d": TABLE}, **settings) as running:
        yield running


class Handshake(flight.ClientAuthHandler):
    """Sends a payload, and keeps that of the response."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload = payload

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(self.payload)
        self.payload = incoming.read()

    def get_token(self) -> Any:
        return b""


def shake_hands(server: Server) -> bytes:
    with flight.connect(str(server.control_uri).replace("grpc:", "grpc+tcp:")) as client:
        handler = Handshake(ISSUER_REQUEST)
        client.authenticate(handler)
        return handler.payload


def get(server: Server, path: str, **headers: str) -> tuple[int, list[str], str]:
    """Return the status, the challenges and the text of an answer."""
    address = urlsplit(str(server.http_uri))
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        challenges = answer.headers.get_all("www-authenticate") or []
        return answer.status, challenges, answer.read().decode()
    finally:
        connection.close()


def test_a_handshake_without_a_token_names_the_issuer(server: Server) -> None:
    assert json.loads(shake_hands(server)) == EXPECTED


def test_the_http_listener_describes_the_resource_and_its_challenge_leads_there(
    server: Server,
) -> None:
    status, challenges, _ = get(server, "/metrics")
    url = f"{server.http_uri}{METADATA_PATH}"
    assert status == 401
    assert challenges == [
        'Basic realm="splitarrow", charset="UTF-8"',
        f'Bearer resource_metadata="{url}"',
    ]
    status, challenges, text = get(server, METADATA_PATH)
    assert (status, challenges) == (200, [])
    assert json.loads(text) == {"resource": server.http_uri, **EXPECTED}


def test_a_malformed_host_is_not_repeated(server: Server) -> None:
    host = 'x" evil="y'
    assert get(server, METADATA_PATH, Host=host)[0] == 400
    assert get(server, "/metrics", Host=host)[1] == ['Basic realm="splitarrow", charset="UTF-8"']


def test_a_server_without_issuer_says_so() -> None:
    settings: dict[str, Any] = {"control": "grpc://127.0.0.1:0", "http": "http://127.0.0.1:0"}
    assert describe_issuer(load_settings()) is None
    with splitarrow.serve({"d": TABLE}, **settings) as server:
        with pytest.raises(KeyError, match="has no issuer"):
            shake_hands(server)
        assert get(server, METADATA_PATH)[0] == 404
        assert get(server, METADATA_PATH, Host="elsewhere.example")[0] == 421
