"""Logins that are kept in a folder, renewed by several processes, and bound to one server."""

from __future__ import annotations

import json
import os
import pickle
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest

import splitarrow
from helpers.oauth_server import CLIENT, SECRET, SERVICE, OAuthServer, oauth_server
from splitarrow.client.rpc.logins import Login, LoginStore, LoginToken, find_login
from splitarrow.client.rpc.oauth import (
    IssuedTokens,
    OAuthClient,
    discover,
    request_client_tokens,
    start_device_login,
    wait_for_approval,
)
from splitarrow.errors import ConnectError, DeniedError, UsageError

SERVER = "grpc://127.0.0.1:8815"
TABLE = pa.table({"n": [1, 2, 3]})
PUBLIC, CONFIDENTIAL = OAuthClient(CLIENT), OAuthClient(SERVICE, SECRET)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SPLITARROW_LOGINS", raising=False)
    return tmp_path / "splitarrow" / "logins"


@pytest.fixture
def issuer() -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


def log_in(issuer: OAuthServer, server: str = SERVER, *, secret: bool = False) -> Login:
    """Log in, and keep the login."""
    found = discover(issuer.issuer, local=True)
    if secret:
        tokens = request_client_tokens(found, CONFIDENTIAL, None, "splitarrow")
    else:
        code = start_device_login(found, PUBLIC, None, "splitarrow", local=True)
        tokens = wait_for_approval(found, PUBLIC, code)
    client = CONFIDENTIAL if secret else PUBLIC
    login = Login(
        server, found.issuer, found.token_endpoint, client.client_id, None, "splitarrow", ""
    )
    login = replace(login, client_secret=client.secret).with_tokens(tokens)
    store = LoginStore(server)
    with store.lock():
        store.save(login)
    return login


def age(server: str = SERVER, seconds: float = 1000.0) -> None:
    """Let the access token of a login have expired some seconds ago, by its file."""
    store = LoginStore(server)
    login = store.load()
    assert login is not None
    now = time.time()
    store.save(replace(login, issued=now - seconds - 1, expires=now - seconds))


def test_a_login_is_kept_for_its_user_alone(issuer: OAuthServer, folder: Path) -> None:
    login = log_in(issuer)
    store = LoginStore(SERVER)
    assert store.path.parent == folder
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert store.load() == login
    assert login.access_token not in repr(login)
    store.path.chmod(0o640)
    with pytest.raises(UsageError, match="no other user may read it"):
        store.load()
    assert [each.name for each in folder.iterdir() if each.suffix == ".json"] == [store.path.name]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"server": "canary"}', "\xff"])
def test_a_damaged_login_is_named_and_not_quoted(folder: Path, text: str) -> None:
    store = LoginStore(SERVER)
    with store.lock():
        store.path.write_bytes(text.encode("latin-1"))
    store.path.chmod(0o600)
    with pytest.raises(UsageError, match=str(store.path)) as caught:
        store.load()
    assert "canary" not in str(caught.value)


def test_a_login_is_found_for_its_server_alone(issuer: OAuthServer) -> None:
    log_in(issuer)
    for other in ("grpc://127.0.0.1:8816", "grpc+tls://127.0.0.1:8815", "grpc://localhost:8815"):
        assert find_login(other) is None
    token = find_login(SERVER)
    assert token is not None
    assert token == LoginToken(LoginStore(SERVER))
    # The file of another server has the wrong content.
    LoginStore(SERVER).path.rename(LoginStore("grpc://b:1").path)
    with pytest.raises(UsageError, match="is incomplete"):
        LoginToken(LoginStore("grpc://b:1")).current()


def test_a_token_is_renewed_at_its_issuer_alone_whatever_a_server_names(
    issuer: OAuthServer,
) -> None:
    login = log_in(issuer)
    age()
    with oauth_server() as hostile:
        hostile.metadata = {"issuer": issuer.issuer}
        issuer.metadata = {"token_endpoint": f"{hostile.issuer}/token"}  # since the login
        token = LoginToken(LoginStore(SERVER))
        assert token.current() not in (login.access_token, "")
        assert hostile.requests == []
    kept = LoginStore(SERVER).load()
    assert kept is not None
    assert (kept.issuer, kept.token_endpoint) == (login.issuer, login.token_endpoint)
    assert kept.refresh_token not in (None, login.refresh_token)
    assert kept.access_token == token.current()


def test_processes_renew_a_login_once(issuer: OAuthServer) -> None:
    log_in(issuer)
    age()
    # Each source stands for a process: they share the files alone.
    sources = [LoginToken(LoginStore(SERVER)) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(LoginToken.current, sources))
    assert len(tokens) == 1
    grants = [fields.get("grant_type") for path, fields in issuer.requests if path == "/token"]
    assert grants.count("refresh_token") == 1


def test_a_client_with_a_secret_renews_with_it(issuer: OAuthServer) -> None:
    login = log_in(issuer, secret=True)
    age()
    assert LoginToken(LoginStore(SERVER)).current() != login.access_token
    assert [fields["grant_type"] for _, fields in issuer.requests] == 2 * ["client_credentials"]


def test_a_refused_token_is_renewed_once(issuer: OAuthServer) -> None:
    login = log_in(issuer)
    token = LoginToken(LoginStore(SERVER))
    assert token.current() == login.access_token
    token.reject(login.access_token)
    renewed = token.current()
    assert renewed != login.access_token
    assert token.current() == renewed


def test_a_login_that_has_ended_names_the_command(issuer: OAuthServer) -> None:
    log_in(issuer)
    age()
    issuer.refresh_tokens.clear()
    token = LoginToken(LoginStore(SERVER))
    ended = f"the login at {SERVER} has ended: .*invalid_grant; run splitarrow login {SERVER}"
    with pytest.raises(DeniedError, match=ended) as caught:
        token.current()
    assert caught.value.code == "UNAUTHENTICATED"
    LoginStore(SERVER).remove()
    with pytest.raises(DeniedError, match="it was removed"):
        token.current()
    issuer.refreshes = False
    log_in(issuer)
    age()
    with pytest.raises(DeniedError, match="issued no refresh token"):
        token.current()


def test_a_token_is_used_until_its_end_while_the_issuer_is_away(issuer: OAuthServer) -> None:
    issuer.token_seconds = 3600.0
    login = log_in(issuer)
    now, store = time.time(), LoginStore(SERVER)
    store.save(replace(login, issued=now - 3000, expires=now + 30))
    issuer.fails = True
    token, before = LoginToken(store), len(issuer.requests)
    assert [token.current() for _ in range(3)] == 3 * [login.access_token]
    assert len(issuer.requests) == before + 1
    token.reject(login.access_token)
    assert [token.current() for _ in range(3)] == 3 * [login.access_token]
    assert len(issuer.requests) == before + 2
    age()
    with pytest.raises(ConnectError, match=r"the login has expired: the issuer .* status 503"):
        LoginToken(store).current()


def test_a_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPLITARROW_LOGINS", str(tmp_path / "file"))
    with (
        pytest.raises(UsageError, match=r"cannot keep logins in .*; set SPLITARROW_LOGINS"),
        LoginStore(SERVER).lock(),
    ):
        pass


def test_a_renewed_login_that_cannot_be_kept_is_used(
    issuer: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = log_in(issuer)
    age()

    def fail(store: LoginStore, login: Login) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LoginStore, "save", fail)
    token = LoginToken(LoginStore(SERVER))
    assert token.current() != login.access_token
    assert token.current() == token.current()


def test_connect_uses_the_login_of_the_server(issuer: OAuthServer) -> None:
    settings = issuer.settings(control="grpc://127.0.0.1:0")
    with splitarrow.serve({"d": TABLE}, **settings) as server:
        uri = str(server.control_uri)
        with pytest.raises(DeniedError, match="no token"):
            splitarrow.connect(uri)
        login = log_in(issuer, uri)
        age(uri)
        with splitarrow.connect(uri) as client:
            assert client.info("d").rows == 3
            assert login.access_token not in repr(client)
            assert pickle.loads(pickle.dumps(client)).info("d").rows == 3
        with splitarrow.open(f"{uri}/d") as stream:
            assert stream.read_all() == TABLE
        with pytest.raises(DeniedError, match="does not know the token"):
            splitarrow.connect(uri, "an-explicit-token")
        LoginStore(uri).remove()
        with pytest.raises(DeniedError, match="no token"):
            splitarrow.connect(uri)


class Keyring(ModuleType):
    """A keyring that has the functions of the library ``keyring``."""

    def __init__(self, priority: float) -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}
        self.get_keyring = lambda: SimpleNamespace(priority=priority)

    def get_password(self, service: str, name: str) -> str | None:
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, text: str) -> None:
        self.kept[service, name] = text

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


def test_a_keyring_keeps_the_tokens(issuer: OAuthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring(5.0)
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    login, store = log_in(issuer, secret=True), LoginStore(SERVER)
    text = store.path.read_text()
    assert list(keyring.kept) == [("splitarrow", SERVER)]
    assert login.access_token not in text
    assert SECRET not in text
    assert store.load() == login
    assert LoginToken(store).current() == login.access_token
    assert store.remove()
    assert not keyring.kept
    assert not store.remove()


def test_a_keyring_that_is_not_safe_keeps_nothing(
    issuer: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = Keyring(0.5)  # that of a file without encryption
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    login = log_in(issuer)
    assert not keyring.kept
    assert json.loads(LoginStore(SERVER).path.read_text())["access_token"] == login.access_token


@pytest.mark.parametrize("state", ["", "relative"])
def test_the_folder_is_that_of_xdg(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", "/home/anna")
    path = LoginStore(SERVER).path
    assert str(path.parent) == "/home/anna/.local/state/splitarrow/logins"
    assert os.sep not in path.name
    monkeypatch.setenv("SPLITARROW_LOGINS", "/logins")
    assert str(LoginStore(SERVER).path.parent) == "/logins"


def test_an_unknown_expiry_is_never_due() -> None:
    tokens = IssuedTokens("a", None, None)
    login = Login(SERVER, "", "", "", None, None, "").with_tokens(tokens)
    assert not login.is_due
    assert not login.has_expired
