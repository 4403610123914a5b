"""A relay shows each reader what the grants of that reader allow, whether it is cached or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.publication import publish
from helpers.relays import CONTROL, start_relay
from splitarrow.client.dataset.client import Client
from splitarrow.client.rpc.info import read_manifest
from splitarrow.errors import DeniedError
from splitarrow.protocol.request import Request
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

ANNA, BERTA, RELAY = "token-of-anna-000000", "token-of-berta-00000", "token-of-the-relay-0"
TABLE = pa.table({"n": list(range(100))})


def write_tokens(path: Path, **globs: tuple[str, str]) -> Path:
    """Write a token file: for each principal, its token and the glob that it may read."""
    path.write_text(
        "\n".join(
            f'[[tokens]]\nname = "{name}"\ntoken = "{token}"\ndatasets = ["{glob}"]'
            for name, (token, glob) in globs.items()
        )
    )
    path.chmod(0o600)
    return path


def start_upstream(tmp_path: Path, daemon: StartDaemon, tokens: Path) -> Daemon:
    locations = {name: str(tmp_path / name) for name in ("trips", "secret")}
    for location in locations.values():
        publish(VersionStore(location), "first", TABLE)
    plain = write_file(tmp_path / "plain.arrow", TABLE, batch_rows=50)
    return daemon(
        {**locations, "secret-plain": plain}, control=CONTROL, token_file=tokens, listen=LISTEN
    )


LISTEN = ["tcp://127.0.0.1:0", "shm://"]


@pytest.fixture
def relay(tmp_path: Path, daemon: StartDaemon) -> Daemon:
    upstream = start_upstream(
        tmp_path, daemon, write_tokens(tmp_path / "upstream.toml", relay=(RELAY, "*"))
    )
    readers = write_tokens(tmp_path / "relay.toml", anna=(ANNA, "trips"), berta=(BERTA, "secret*"))
    options: dict[str, Any] = {"token_file": readers, "listen": LISTEN}
    return start_relay(tmp_path, upstream, daemon, "--token", RELAY, **options)


USES: dict[str, Callable[[Client, str], object]] = {
    "info": lambda client, name: client.info(name),
    "schema": lambda client, name: client.schema(name),
    "tcp": lambda client, name: client.read(name, transport="tcp").read_all(),
    "shm": lambda client, name: client.read(name, transport="shm").read_all(),
    "DoGet": lambda client, name: client.read(name, transport="flight").read_all(),
    "file": lambda client, name: client.read(name, format="file", shards=[0]).read_all(),
    "count": lambda client, name: client.count_rows(name),
    "lengths": lambda client, name: client.list_lengths(name, "n"),
    "manifest": lambda client, name: read_manifest(client.channel, Request(name)),
    "ranges": lambda client, name: client.act("ranges", Request(name).ticket()),
    "hold": lambda client, name: client.act("hold", name.encode()),
}


def check_reader(client: Client, allowed: list[str], denied: list[str]) -> None:
    assert list(client) == allowed
    for name in denied:
        for use in USES.values():
            with pytest.raises(DeniedError, match=f"may not read '{name}'"):
                use(client, name)
    assert list(json.loads(client.act("versions"))) == allowed
    status = client.status()
    assert set(status["datasets"]) == set(allowed)
    assert not set(status["sent"]) & set(denied)


def test_a_reader_gets_no_more_than_its_grants(relay: Daemon) -> None:
    uri = str(relay.control_uri)
    secrets = ["secret", "secret-plain"]
    with splitarrow.connect(uri, ANNA) as anna, splitarrow.connect(uri, BERTA) as berta:
        for _ in range(2):  # before and after the shards are in the cache
            check_reader(anna, ["trips"], secrets)
            check_reader(berta, secrets, ["trips"])
            for transport in ("tcp", "shm", "flight"):
                assert anna.read("trips", transport=transport).read_all() == TABLE
                for name in secrets:
                    assert berta.read(name, transport=transport).read_all() == TABLE
        ticket = berta.info("secret").endpoints[0].ticket
        with pytest.raises(DeniedError):
            list(anna.channel.call_stream("DoGet", pb_ticket(ticket)))
        with pytest.raises(DeniedError):
            anna.act("renew", ticket)
        for action in ("reload", "pin"):
            with pytest.raises(DeniedError, match="may not act on the whole server"):
                anna.act(action, b'{"datasets": ["trips"]}')
        assert anna.status()["relay"] == {"offline": False}
        assert json.loads(anna.act("relay"))["level"] == 1
    for token in (None, "token-of-nobody-0000"):
        with pytest.raises(DeniedError):
            splitarrow.connect(uri, token)


def test_the_upstream_knows_the_readers(tmp_path: Path, daemon: StartDaemon) -> None:
    tokens = write_tokens(
        tmp_path / "upstream.toml",
        relay=(RELAY, "*"),
        anna=(ANNA, "trips"),
        berta=(BERTA, "secret*"),
    )
    upstream = start_upstream(tmp_path, daemon, tokens)
    arguments = ("--token", RELAY, "--forward-identity")
    relay = start_relay(tmp_path, upstream, daemon, *arguments, listen=LISTEN)
    above = start_relay(tmp_path / "above", relay, daemon, *arguments, listen=LISTEN)
    secrets = ["secret", "secret-plain"]
    for uri in (str(relay.control_uri), str(above.control_uri)):
        with splitarrow.connect(uri, ANNA) as anna, splitarrow.connect(uri, BERTA) as berta:
            check_reader(anna, ["trips"], secrets)
            check_reader(berta, secrets, ["trips"])
            assert anna.read("trips").read_all() == TABLE
            assert berta.read("secret").read_all() == TABLE
            with pytest.raises(DeniedError, match="may not act on the whole server"):
                anna.act("reload")
        for token in (None, "token-of-nobody-0000"):
            with pytest.raises(DeniedError):
                splitarrow.connect(uri, token)


def pb_ticket(ticket: bytes) -> bytes:
    from splitarrow.proto import Flight_pb2 as pb

    return pb.Ticket(ticket=ticket).SerializeToString()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPLITARROW_TOKEN", RELAY),
        ("SPLITARROW_CLIENT_TOKEN_FILE", "{}"),
        ("", "--upstream-token-file={}"),
    ],
)
def test_the_relay_has_no_more_than_its_own_grants(
    tmp_path: Path, daemon: StartDaemon, name: str, value: str
) -> None:
    upstream = start_upstream(
        tmp_path, daemon, write_tokens(tmp_path / "upstream.toml", relay=(RELAY, "trips"))
    )
    file = tmp_path / "relay.token"
    file.write_text(f"{RELAY}\n")
    given: dict[str, Any] = {"environment": {name: value.format(file)} if name else {}}
    options = [value.format(file)] if not name else []
    relay = start_relay(tmp_path, upstream, daemon, *options, **given)
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert list(client) == ["trips"]
        assert client.read("trips").read_all() == TABLE
        with pytest.raises(splitarrow.errors.NotFoundError):
            client.read("secret")
