"""Readers from outside, behind nginx, HAProxy and Envoy with the configurations of the guide."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trustme

import splitarrow
from helpers.proxies import (
    PROXIES,
    Ports,
    configure,
    find_envoy_tls,
    find_ports,
    read_guide,
    running,
)
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.tls_options import TlsOptions

pytestmark = pytest.mark.slow

TABLE = pa.table({"n": pa.array(np.arange(1 << 20))})
LARGE = pa.table({"n": pa.array(np.zeros(8 << 20))})
NAME = "localhost"
CERTIFICATE = (
    "ssl_protocols TLSv1.3; ssl_certificate /etc/ssl/data.pem; "
    "ssl_certificate_key /etc/ssl/data.pem;"
)
ENDING_TLS: dict[str, Callable[[str], dict[str, str]]] = {
    "nginx": lambda text: {"listen 30016;": f"listen 30016 ssl; {CERTIFICATE}"},
    "HAProxy": lambda text: {"bind :30016": "bind :30016 ssl crt /etc/ssl/data.pem"},
    "Envoy": lambda text: {
        "        - filters:\n": f"{find_envoy_tls(text, '')}          filters:\n"
    },
}
"""Returns what makes a proxy end the TLS of data, by the text in its place."""


def port_of(uri: str | None) -> int:
    port = DataUri.parse(uri or "").port
    assert port is not None
    return port


class Outside:
    """A daemon and a proxy in front of it, which clients know by one name."""

    def __init__(self, server: splitarrow.Server, ports: Ports, authority: Path) -> None:
        self.server = server
        self.ports = ports
        self.tls = TlsOptions(ca_file=authority)
        self.context = ssl.create_default_context(cafile=str(authority))

    def connect(self) -> Any:
        return splitarrow.connect(f"grpc+tls://{NAME}:{self.ports.web}", tls=self.tls)

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPSConnection(
            NAME, self.ports.web, context=self.context, timeout=30
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            return response.read()
        finally:
            connection.close()

    def list_peers(self) -> list[str]:
        """Return the addresses of the readers of running streams, as the daemon knows them."""
        return [stream["peer"] for stream in json.loads(self.get("/v1/streams"))["streams"]]


def list_remote_ends(address: str) -> list[str]:
    """Return the other ends of the connections of an address of this host."""
    rows = [line.split()[1:3] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [[_parse_end(end) for end in row] for row in rows]
    return [remote for local, remote in ends if local == address]


def _parse_end(text: str) -> str:
    host, port = (bytes.fromhex(part) for part in text.split(":"))
    return f"{IPv4Address(host[::-1])}:{int.from_bytes(port)}"


@contextmanager
def outside(
    name: str, scheme: str, folder: Path, *, ends_tls: bool = False, trusted: bool = True
) -> Generator[Outside]:
    """Serve a table behind a proxy, which may end the TLS of data."""
    listener = "tcp" if ends_tls else scheme
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    # Clients keep the certificates of a path for a second.
    ca = folder / f"{name}-{scheme}-{ends_tls}.pem"
    authority.cert_pem.write_to_path(str(ca))
    pem = folder / "data.pem"
    leaf = authority.issue_cert(NAME, "127.0.0.1", key_type=trustme.KeyType.ECDSA)
    leaf.private_key_and_cert_chain_pem.write_to_path(str(pem))
    ports = find_ports()
    with splitarrow.serve(
        {"a": TABLE, "large": LARGE},
        listen=[f"{listener}://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
        http="http://127.0.0.1:0",
        writable=folder / "uploads",
        advertise={
            listener: f"{scheme}://{NAME}:{ports.data}",
            "http": f"https://{NAME}:{ports.web}",
        },
        tls_cert=pem if listener == "tcp+tls" else None,
        proxy_protocol=["127.0.0.0/8"] if trusted else [],
    ) as server:
        changes = ENDING_TLS[name](read_guide(name)) if ends_tls else {}
        text = configure(
            name,
            {
                "8815": port_of(server.control_uri),
                "8816": port_of(server.listen[0]),
                "9816": port_of(server.http_uri),
                "30016": ports.data,
                "443": ports.web,
            },
            pem,
            changes,
        )
        with running(PROXIES[name](folder, text), folder, ports):
            yield Outside(server, ports, ca)


@pytest.mark.parametrize(
    ("scheme", "ends_tls"),
    [("tcp", False), ("tcp+tls", False), ("tcp+tls", True)],
    ids=["tcp", "passes-tls", "ends-tls"],
)
@pytest.mark.parametrize("name", PROXIES)
def test_one_endpoint_leads_to_all_listeners(
    name: str, scheme: str, ends_tls: bool, tmp_path: Path
) -> None:
    one = outside(name, scheme, tmp_path, ends_tls=ends_tls)
    with one as found, found.connect() as client:
        for transport in ("flight", scheme):
            with client.read("a", transport=transport) as stream:
                assert stream.read_all() == TABLE
                assert stream.transport == transport
        (endpoint,) = client.info("a").endpoints
        assert endpoint.locations[0].startswith(f"{scheme}://{NAME}:{found.ports.data}?")
        client.put("b", TABLE)
        assert client.read("b", transport="flight").read_all() == TABLE
        assert client.status()["advertised"] == {"http": f"https://{NAME}:{found.ports.web}"}
        assert found.get("/healthz") == b"ok\n"
        assert pa.ipc.open_stream(found.get("/v1/datasets/a/data")).read_all() == TABLE
        datasets = json.loads(found.get("/v1/datasets"))["datasets"]
        assert [dataset["name"] for dataset in datasets] == ["a", "large", "b"]
        with client.read("large", transport=scheme):
            wait_until(lambda: len(found.list_peers()) == 1, "the end of earlier streams")
            (peer,) = found.list_peers()
            assert f"127.0.0.1:{found.ports.data}" in list_remote_ends(peer)
        # Without the proxy, as before.
        assert splitarrow.open(found.server.uri("a"), tls=found.tls).read_all() == TABLE


@pytest.mark.parametrize("name", PROXIES)
def test_the_proxy_sends_a_header_that_only_trust_makes_valid(name: str, tmp_path: Path) -> None:
    one = outside(name, "tcp", tmp_path, trusted=False)
    with one as found, found.connect() as client:
        with pytest.raises(SplitArrowError):
            client.read("a", transport="tcp", resume_attempts=0).read_all()
        assert client.read("a", transport="flight").read_all() == TABLE
