"""The access control that a server builds from its settings."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt

from splitarrow.errors import (
    ConfigError,
    DeniedError,
    InvalidRequestError,
    UnavailableError,
)
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri, Streams
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.principal import ANYONE, Grants
from splitarrow.server.auth.tickets import TicketKeys, TicketSigner
from splitarrow.server.auth.token_file import TokenFile
from splitarrow.server.config import load_settings

TOKEN = "a-token-of-some-length"


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


async def test_without_settings_everyone_reads_with_unsigned_tickets(key_file: Path) -> None:
    access = AccessControl.from_settings(load_settings())
    assert not access.requires_token
    assert not access.signs_tickets
    assert await access.authenticate({}) is ANYONE
    assert access.issue_ticket(Request("data")) == b"data"
    for _ in range(2):
        claims = access.redeem_ticket(b"data", Streams.BOTH)
        assert claims.request == Request("data")
        assert not claims.signed
    with pytest.raises(InvalidRequestError):
        access.redeem_ticket(b"\xff", Streams.BOTH)
    with pytest.raises(DeniedError, match="requires no token"):
        await access.exchange_password("x", TOKEN)
    signing = AccessControl.from_settings(load_settings(ticket_key_file=key_file))
    for ticket in (signing.issue_ticket(Request("data")), b"sa2.data"):
        with pytest.raises(DeniedError, match="does not accept signed tickets"):
            access.redeem_ticket(ticket, Streams.BOTH)
    with pytest.raises(ConfigError, match="--token-file"):
        access.check_exposure([DataUri.parse("tcp://0.0.0.0:0")], None)
    access.check_exposure([DataUri.parse("tcp://0.0.0.0:0")], None, insecure=True)
    access.close()


async def test_a_token_file_makes_tickets_signed(token_file: Path) -> None:
    access = AccessControl.from_settings(load_settings(token_file=token_file))
    assert access.requires_token
    assert access.signs_tickets
    assert (await access.authenticate({"authorization": f"Bearer {TOKEN}"})).name == "x"
    assert await access.exchange_password("x", TOKEN) == TOKEN
    with pytest.raises(DeniedError, match="no token"):
        await access.authenticate({})
    ticket = access.issue_ticket(Request("data", limit=5), "x")
    for stream in (Streams.METADATA, Streams.BODY):
        claims = access.redeem_ticket(ticket, stream)
        assert (claims.request, claims.principal) == (Request("data", limit=5), "x")
        assert claims.signed
    with pytest.raises(DeniedError, match="already used"):
        access.redeem_ticket(ticket, Streams.BOTH)
    with pytest.raises(DeniedError, match="requires a signed ticket"):
        access.redeem_ticket(b"data", Streams.BOTH)
    access.check_exposure([DataUri.parse("tcp://0.0.0.0:0")], DataUri.parse("grpc://0.0.0.0:0"))
    access.close()
    access.close()


async def test_a_reload_does_not_change_whether_tokens_are_required(token_file: Path) -> None:
    access = AccessControl.from_settings(load_settings())
    access.load(load_settings(token_file=token_file))()
    assert not access.requires_token
    assert await access.authenticate({}) is ANYONE
    access = AccessControl.from_settings(load_settings(token_file=token_file))
    access.load(load_settings())()
    assert access.requires_token
    with pytest.raises(DeniedError):
        await access.authenticate({})
    access.close()


async def test_a_reload_applies_other_files_of_tokens_and_keys(
    tmp_path: Path, token_file: Path, key_file: Path
) -> None:
    settings = load_settings(token_file=token_file, ticket_key_file=key_file)
    access = AccessControl.from_settings(settings)
    old = access.issue_ticket(Request("data"), "x")
    other_keys, other_tokens = tmp_path / "other-keys", tmp_path / "other-tokens"
    other_keys.touch(0o600)
    other_keys.write_text(secrets.token_hex(32))
    other_tokens.touch(0o600)
    other_tokens.write_text(token_file.read_text().replace(TOKEN, TOKEN[::-1]))
    others = load_settings(token_file=other_tokens, ticket_key_file=other_keys)
    signer = TicketSigner(TicketKeys(path=other_keys))
    new = signer.sign(Request("data"), "x")
    apply = access.load(others)
    with pytest.raises(DeniedError, match="was not signed by this server"):
        access.redeem_ticket(new, Streams.BOTH)
    assert (await access.authenticate({"authorization": f"Bearer {TOKEN}"})).name == "x"
    apply()
    assert access.redeem_ticket(new, Streams.BOTH).request == Request("data")
    assert (await access.authenticate({"authorization": f"Bearer {TOKEN[::-1]}"})).name == "x"
    with pytest.raises(DeniedError, match="does not know the token"):
        await access.authenticate({"authorization": f"Bearer {TOKEN}"})
    with pytest.raises(DeniedError, match="was not signed by this server"):
        access.redeem_ticket(old, Streams.BOTH)
    access.load(load_settings(token_file=token_file))()  # without keys, it keeps those it has
    assert access.redeem_ticket(signer.sign(Request("data"), "x"), Streams.BOTH)
    signer.close()
    access.close()


def test_a_reload_does_not_change_whether_tickets_are_signed(key_file: Path) -> None:
    access = AccessControl.from_settings(load_settings())
    access.load(load_settings(ticket_key_file=key_file))()
    assert not access.signs_tickets
    assert access.issue_ticket(Request("data")) == b"data"
    access.close()


def test_a_closed_access_control_redeems_nothing(key_file: Path) -> None:
    access = AccessControl.from_settings(load_settings(ticket_key_file=key_file))
    ticket = access.issue_ticket(Request("data"))
    access.close()
    with pytest.raises(UnavailableError, match="shutting down"):
        access.redeem_ticket(ticket, Streams.BOTH)


def test_a_server_issues_its_own_tickets_as_the_principal_server(key_file: Path) -> None:
    access = AccessControl.from_settings(load_settings(ticket_key_file=key_file))
    claims = access.redeem_ticket(access.issue_ticket(Request("data")), Streams.BOTH)
    assert claims.principal == "server"
    access.close()


@pytest.mark.parametrize(
    ("client_certificates", "insecure", "is_refused"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_an_exposed_listener_needs_certificates_or_permission(
    client_certificates: bool, insecure: bool, is_refused: bool
) -> None:
    access = AccessControl.from_settings(load_settings())
    options: dict[str, Any] = {"client_certificates": client_certificates, "insecure": insecure}
    listener = DataUri.parse("tcp+tls://0.0.0.0:0")
    if is_refused:
        for each in (options, {}):
            with pytest.raises(ConfigError, match="everyone on the network"):
                access.check_exposure([listener], None, **each)
    else:
        access.check_exposure([listener], None, **options)


def test_servers_with_the_same_keys_redeem_one_stream_each(key_file: Path) -> None:
    settings = load_settings(ticket_key_file=key_file)
    metadata, body = (AccessControl.from_settings(settings) for _ in range(2))
    assert not metadata.requires_token
    ticket = metadata.issue_ticket(Request("data"))
    assert metadata.redeem_ticket(ticket, Streams.METADATA).request == Request("data")
    assert body.redeem_ticket(ticket, Streams.BODY).request == Request("data")
    for access in (metadata, body):
        with pytest.raises(DeniedError):
            access.redeem_ticket(ticket, Streams.BOTH)
        access.close()


def test_incomplete_settings_are_refused(token_file: Path) -> None:
    with pytest.raises(ConfigError, match="set jwt_issuer and jwt_audience"):
        AccessControl.from_settings(load_settings(jwks="keys.json", jwt_issuer="x"))
    with pytest.raises(ConfigError, match="set jwks as well"):
        AccessControl.from_settings(load_settings(token_file=token_file, jwt_issuer="x"))
    with pytest.raises(ConfigError, match="must sign its tickets"):
        AccessControl(Authenticator(TokenFile(token_file)))


async def test_complete_settings_of_a_jwt_issuer_require_its_tokens(tmp_path: Path) -> None:
    key = jwk.ECKey.generate_key("P-256", {"kid": "k"})
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    settings = load_settings(jwks=str(path), jwt_issuer="https://issuer", jwt_audience="data")
    access = AccessControl.from_settings(settings)
    assert access.requires_token
    assert access.signs_tickets
    claims = {"iss": "https://issuer", "aud": "data", "sub": "ada", "exp": int(time.time()) + 60}
    token = jwt.encode({"alg": "ES256", "kid": "k"}, {**claims, "datasets": ["x"]}, key)
    principal = await access.authenticate({"authorization": f"Bearer {token}"})
    assert (principal.name, principal.grants) == ("ada", Grants(("x",)))
    for wrong in ({"iss": "https://other"}, {"aud": "other"}):
        token = jwt.encode({"alg": "ES256", "kid": "k"}, {**claims, **wrong}, key)
        with pytest.raises(DeniedError):
            await access.authenticate({"authorization": f"Bearer {token}"})
    access.close()


def test_workers_share_the_used_tickets_of_their_parent(token_file: Path) -> None:
    settings = load_settings(token_file=token_file)
    parent = AccessControl.from_settings(settings)
    first, second = (AccessControl.from_settings(settings, parent.signer) for _ in range(2))
    ticket = first.issue_ticket(Request("data"))
    assert second.redeem_ticket(ticket, Streams.BOTH).request == Request("data")
    with pytest.raises(DeniedError):
        first.redeem_ticket(ticket, Streams.BOTH)
    parent.close()
