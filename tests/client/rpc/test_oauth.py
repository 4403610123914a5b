"""OAuth 2.0 with an issuer that is right, slow, hostile or away."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.clock import Clock
from helpers.oauth_server import CLIENT, SECRET, SERVICE, OAuthServer, oauth_server
from splitarrow.client.rpc.oauth import (
    IssuedTokens,
    Issuer,
    IssuerHint,
    OAuthClient,
    check_url,
    discover,
    is_loopback,
    parse_hint,
    refresh_tokens,
    request_client_tokens,
    start_device_login,
    wait_for_approval,
)
from splitarrow.client.tokens import read_expiry
from splitarrow.errors import (
    ConnectError,
    DeniedError,
    MissingExtraError,
    ProtocolError,
    SplitArrowError,
    UsageError,
)

PUBLIC, CONFIDENTIAL = OAuthClient(CLIENT), OAuthClient(SERVICE, SECRET)


@pytest.fixture
def server() -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


@pytest.fixture
def issuer(server: OAuthServer) -> Issuer:
    return discover(server.issuer, local=True)


def log_in(issuer: Issuer, **options: Any) -> IssuedTokens:
    code = start_device_login(issuer, PUBLIC, "openid", "splitarrow", local=True)
    return wait_for_approval(issuer, PUBLIC, code, **options)


def test_a_device_gets_tokens_once_the_user_has_approved(
    server: OAuthServer, issuer: Issuer
) -> None:
    server.approves = "pending"
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            for device in server.devices.values():
                device.state = "approved"

    tokens = log_in(issuer, pause=pause)
    assert len(pauses) == 3
    assert [each.get("error") for each in server.answers[1:]] == [
        *("authorization_pending", "authorization_pending"),
        None,
    ]
    assert server.requests[0] == (
        "/device",
        {"client_id": CLIENT, "scope": "openid", "audience": "splitarrow"},
    )
    assert tokens.expires == pytest.approx(read_expiry(tokens.access_token), abs=5)
    again = refresh_tokens(issuer, PUBLIC, tokens.refresh_token or "")
    assert again.access_token != tokens.access_token
    assert again.refresh_token != tokens.refresh_token
    with pytest.raises(DeniedError, match="refuses: because invalid_grant"):
        refresh_tokens(issuer, PUBLIC, tokens.refresh_token or "")
    assert tokens.access_token not in repr(tokens)


def test_a_client_that_is_too_fast_waits_five_seconds_longer(
    server: OAuthServer, issuer: Issuer
) -> None:
    server.interval = None
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        for device in server.devices.values():
            device.polled -= 100.0 if len(pauses) == 3 else 0.0
            device.polled = device.polled or 1e12  # the server takes the first one as too early

    log_in(issuer, pause=pause)
    assert pauses == [5.0, 10.0, 15.0]


def test_a_client_waits_longer_while_the_issuer_is_away(
    server: OAuthServer, issuer: Issuer
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        server.fails = len(pauses) < 4

    log_in(issuer, pause=pause)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])


@pytest.mark.parametrize(
    ("approves", "seconds", "message"),
    [
        ("denied", 60.0, "the login was denied"),
        ("pending", -1.0, "the code has expired before it was approved"),
    ],
)
def test_a_login_that_fails_states_why(
    server: OAuthServer, issuer: Issuer, approves: str, seconds: float, message: str
) -> None:
    server.approves, server.code_seconds = approves, seconds
    with pytest.raises(DeniedError, match=message) as caught:
        log_in(issuer)
    assert caught.value.code == "UNAUTHENTICATED"


def test_a_code_that_nobody_approves_ends_by_itself(server: OAuthServer, issuer: Issuer) -> None:
    server.approves = "pending"
    clock = Clock(0.0)

    def pause(seconds: float) -> None:
        clock.now += max(seconds, 10.0)

    with pytest.raises(DeniedError, match="expired before it was approved"):
        log_in(issuer, pause=pause, clock=clock)
    assert clock.now == 60.0


def test_a_client_with_a_secret_sends_it_in_the_header_only(
    server: OAuthServer, issuer: Issuer
) -> None:
    tokens = request_client_tokens(issuer, CONFIDENTIAL, None, "splitarrow")
    assert read_expiry(tokens.access_token) is not None
    assert tokens.refresh_token is None
    assert server.requests == [
        ("/token", {"grant_type": "client_credentials", "audience": "splitarrow"})
    ]
    with pytest.raises(DeniedError, match="because invalid_client") as caught:
        request_client_tokens(issuer, OAuthClient(SERVICE, "canary-secret"), None, None)
    assert "canary" not in f"{caught.value} {CONFIDENTIAL!r}"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"issuer": "https://other.example"}, "names another issuer"),
        ({"token_endpoint": None}, "has no token_endpoint"),
        ({"token_endpoint": "http://issuer.example/token"}, "must use https"),
        ({"token_endpoint": "ftp://127.0.0.1/token"}, "must use https"),
        ({"device_authorization_endpoint": "http://issuer.example/d"}, "must use https"),
        ({"token_endpoint": "https://user@issuer.example/token"}, "is malformed"),
    ],
)
def test_metadata_that_leads_elsewhere_is_refused(
    server: OAuthServer, metadata: dict[str, Any], message: str
) -> None:
    server.metadata = metadata
    with pytest.raises(SplitArrowError, match=message):
        discover(server.issuer, local=True)


def test_only_a_server_on_this_host_may_name_an_issuer_on_this_host(server: OAuthServer) -> None:
    with pytest.raises(UsageError, match="is on this host, but the server is not"):
        discover(server.issuer)
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        *("http://issuer.example", "https://", "file:///etc/passwd", "javascript:alert(1)"),
        *(
            "https://a.example/#x",
            "https://a.example/\x1b[2J",
            "https://[",
            "http://127.evil.example",
        ),
        *("https://a b.example", "https://ä.example", "https://me:pw@a.example"),
    ],
)
def test_urls_that_are_not_safe_are_refused(url: str) -> None:
    for local in (False, True):
        with pytest.raises(UsageError):
            check_url(url, "the issuer", local=local)
    with pytest.raises(UsageError):
        discover(url)


def test_loopback_is_decided_without_names() -> None:
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "a.localhost"):
        assert is_loopback(host)
    for host in ("127.evil.example", "localhost.example", "10.0.0.1", ""):
        assert not is_loopback(host)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(server: OAuthServer, issuer: Issuer, status: int) -> None:
    paths: list[str] = []

    def answer(path: str, body: str, headers: Any) -> tuple[int, dict[str, Any]]:
        paths.append(path)
        return status, {"location": f"{server.issuer}/elsewhere"}

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(DeniedError, match=f"status {status}"):
        refresh_tokens(issuer, CONFIDENTIAL, "canary")
    with pytest.raises(ProtocolError, match=f"status {status}"):
        discover(server.issuer, local=True)
    assert "/elsewhere" not in paths


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"access_token": 7},
        {"access_token": "canary\x00token"},
        {"access_token": "canary", "token_type": "mac"},
        {"access_token": "canary", "refresh_token": ["canary"]},
    ],
)
def test_malformed_tokens_are_refused_and_not_quoted(
    server: OAuthServer, issuer: Issuer, answer: dict[str, Any]
) -> None:
    server.answer = lambda *request: (200, answer)  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="no bearer token") as caught:
        refresh_tokens(issuer, PUBLIC, "x")
    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("status", "found"),
    [(200, []), (200, {"device_code": "a"}), (404, {}), (200, {"x": "y" * 2_000_000})],
)
def test_malformed_answers_are_refused(
    server: OAuthServer, issuer: Issuer, status: int, found: Any
) -> None:
    server.answer = lambda *request: (status, found)  # type: ignore[method-assign]
    with pytest.raises((ProtocolError, DeniedError)):
        log_in(issuer)
    with pytest.raises(ProtocolError):
        discover(server.issuer, local=True)


def test_an_explanation_cannot_control_the_terminal(server: OAuthServer, issuer: Issuer) -> None:
    found = {"error": "x", "error_description": "\x1b[31mred\n" + "long" * 1000}
    server.answer = lambda *request: (400, found)  # type: ignore[method-assign]
    with pytest.raises(DeniedError) as caught:
        log_in(issuer)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_an_issuer_that_is_away_is_named() -> None:
    issuer = Issuer("http://127.0.0.1:1", "http://127.0.0.1:1/token", None)
    with pytest.raises(
        ConnectError, match=r"cannot reach the issuer http://127\.0\.0\.1:1: .*refused"
    ):
        refresh_tokens(issuer, PUBLIC, "canary")
    with pytest.raises(UsageError, match="offers no login of devices"):
        start_device_login(issuer, PUBLIC, None, None, local=True)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, issuer: Issuer) -> None:
    monkeypatch.setitem(sys.modules, "oauthlib.oauth2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[login\]'"):
        log_in(issuer)


@pytest.mark.parametrize(
    "payload",
    [b"", b"splitarrow:issuer", b"[]", b"{}", b'{"authorization_servers": [7]}', b"[" * 10000],
)
def test_a_server_without_issuer_cannot_be_logged_in_to(payload: bytes) -> None:
    with pytest.raises(UsageError, match="grpc://a:1 names no issuer"):
        parse_hint(payload, "grpc://a:1")


def test_a_hint_needs_only_the_issuer() -> None:
    payload = json.dumps({"authorization_servers": ["https://a"], "scopes_supported": ["b", 7]})
    assert parse_hint(payload.encode(), "") == IssuerHint("https://a", None, "b", None)
