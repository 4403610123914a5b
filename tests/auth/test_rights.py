"""What settings make of a server's rights."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import pytest

from splitarrow.errors import ConfigError, DeniedError, InvalidRequestError
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri, StreamKind
from splitarrow.server.auth.principal import ANYONE
from splitarrow.server.auth.rights import Rights, make_guard, make_office, make_rights

TOKEN = "a-token-of-some-length"


@dataclass(frozen=True)
class Settings:
    token_file: Path | None = None
    jwks: str | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    ticket_key_file: Path | None = None
    ticket_seconds: float = 300.0


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    path.write_text(f"[[tokens]]\nname = 'x'\ntoken = '{TOKEN}'\ndatasets = ['*']\n")
    return path


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(secrets.token_hex(32))
    return path


async def test_open_mode_takes_plain_names_from_anyone(key_file: Path) -> None:
    rights = make_rights(Settings())
    assert not rights.signed
    assert await rights.principal({}) is ANYONE
    assert rights.ticket(Request("data")) == b"data"
    for _ in range(2):
        assert rights.admit(b"data", StreamKind.BOTH) == Request("data")
    with pytest.raises(InvalidRequestError):
        rights.admit(b"\xff", StreamKind.BOTH)
    signed = make_rights(Settings(ticket_key_file=key_file)).ticket(Request("data"))
    for ticket in (signed, b"sa2.data"):
        with pytest.raises(DeniedError, match="no signed tickets"):
            rights.admit(ticket, StreamKind.BOTH)
    with pytest.raises(ConfigError, match="--token-file"):
        rights.check_exposure([DataUri.parse("tcp://0.0.0.0:0")], None)
    rights.check_exposure([DataUri.parse("tcp://0.0.0.0:0")], None, insecure=True)
    rights.close()


async def test_with_tokens_tickets_are_signed(token_file: Path) -> None:
    rights = make_rights(Settings(token_file=token_file))
    assert rights.signed
    assert (await rights.principal({"authorization": f"Bearer {TOKEN}"})).name == "x"
    with pytest.raises(DeniedError, match="no token"):
        await rights.principal({})
    ticket = rights.ticket(Request("data", limit=5), "x")
    assert rights.admit(ticket, StreamKind.METADATA) == Request("data", limit=5)
    assert rights.admit(ticket, StreamKind.BODY) == Request("data", limit=5)
    with pytest.raises(DeniedError, match="used already"):
        rights.admit(ticket, StreamKind.BOTH)
    with pytest.raises(DeniedError, match="signed tickets only"):
        rights.admit(b"data", StreamKind.BOTH)
    rights.check_exposure([DataUri.parse("tcp://0.0.0.0:0")], DataUri.parse("grpc://0.0.0.0:0"))
    rights.close()
    rights.close()


def test_two_servers_with_the_same_keys_split_a_stream(key_file: Path) -> None:
    metadata, body = (make_rights(Settings(ticket_key_file=key_file)) for _ in range(2))
    assert metadata.guard is None
    ticket = metadata.ticket(Request("data"))
    assert metadata.admit(ticket, StreamKind.METADATA) == Request("data")
    assert body.admit(ticket, StreamKind.BODY) == Request("data")
    for rights in (metadata, body):
        with pytest.raises(DeniedError):
            rights.admit(ticket, StreamKind.BOTH)
        rights.close()


def test_settings_that_do_not_go_together(token_file: Path) -> None:
    with pytest.raises(ConfigError, match="needs jwt_issuer and jwt_audience"):
        make_guard(Settings(jwks="keys.json", jwt_issuer="x"))
    with pytest.raises(ConfigError, match="they need jwks"):
        make_guard(Settings(token_file=token_file, jwt_issuer="x"))
    guard = make_guard(Settings(token_file=token_file))
    with pytest.raises(ConfigError, match="signs its tickets"):
        Rights(guard, None)
    assert make_office(Settings()) is None


def test_a_worker_takes_the_office_of_its_parent(token_file: Path) -> None:
    settings = Settings(token_file=token_file)
    office = make_office(settings)
    assert office is not None
    first, second = make_rights(settings, office), make_rights(settings, office)
    ticket = first.ticket(Request("data"))
    assert second.admit(ticket, StreamKind.BOTH) == Request("data")
    with pytest.raises(DeniedError):
        first.admit(ticket, StreamKind.BOTH)
    office.close()
