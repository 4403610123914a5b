"""JSON Web Tokens with real signatures and claims, and keys from files and servers."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import json
import logging
import pickle
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk, jwt

from helpers.clock import Clock
from splitarrow.errors import ConfigError, DeniedError, MissingExtraError
from splitarrow.server.auth import jwt as jwks
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.jwt import (
    ALGORITHMS,
    FileKeys,
    JwtVerifier,
    UrlKeys,
    check_url,
    fetch_url,
    open_key_source,
)
from splitarrow.server.auth.principal import Grants, Principal
from splitarrow.server.config import load_settings

ISSUER, AUDIENCE = "https://issuer.example", "splitarrow"
NOW = 1_900_000_000
CANARY = "canary-claim-value"

RSA = jwk.RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "ec"})
OKP = jwk.OKPKey.generate_key("Ed25519", {"kid": "okp"})
NEW = jwk.ECKey.generate_key("P-256", {"kid": "new"})
FOREIGN = jwk.ECKey.generate_key("P-256", {"kid": "ec"})
KEYS: dict[str, Any] = {"RS256": RSA, "PS256": RSA, "ES256": EC, "Ed25519": OKP}
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "aud": AUDIENCE,
    "sub": "training",
    "exp": NOW + 60,
    "datasets": ["flights", "trips/*"],
}


def key_set(*keys: Any, private: bool = False) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=private) for key in keys]}).encode()


def token(key: Any = EC, algorithm: str = "ES256", **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    header = {"alg": algorithm, "kid": key.kid}
    return jwt.encode(header, claims, key, algorithms=[algorithm])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(RSA, EC, OKP))
    return file


@pytest.fixture
def verifier(path: Path) -> JwtVerifier:
    return JwtVerifier(FileKeys(path), ISSUER, AUDIENCE, clock=Clock(NOW))


@pytest.mark.parametrize("algorithm", sorted(KEYS))
def test_a_valid_token_names_its_principal(verifier: JwtVerifier, algorithm: str) -> None:
    assert algorithm in ALGORITHMS
    text = token(KEYS[algorithm], algorithm)
    expected = Principal("training", Grants(("flights", "trips/*")))
    assert verifier.verify(text) == expected
    authenticator = Authenticator(jwt_verifier=verifier)
    assert authenticator.authenticate({"authorization": f"Bearer {text}"}) == expected
    assert repr(authenticator) == "<Authenticator JSON Web Tokens>"


@pytest.mark.parametrize(
    ("changes", "grants"),
    [
        ({"datasets": None}, Grants()),
        ({"datasets": []}, Grants()),
        ({"datasets": "flights trips/*"}, Grants(("flights", "trips/*"))),
        ({"write": ["scores"], "datasets": None}, Grants((), ("scores",))),
        ({"aud": ["other", AUDIENCE]}, Grants(("flights", "trips/*"))),
        ({"exp": NOW + 1}, Grants(("flights", "trips/*"))),
        ({"nbf": NOW, "iat": NOW}, Grants(("flights", "trips/*"))),
    ],
)
def test_claims_become_grants(
    verifier: JwtVerifier, changes: dict[str, Any], grants: Grants
) -> None:
    assert verifier.verify(token(**changes)).grants == grants


def test_a_token_is_valid_until_its_expiry_and_the_leeway(path: Path) -> None:
    clock = Clock(NOW)
    exact = JwtVerifier(FileKeys(path), ISSUER, AUDIENCE, clock=clock)
    lenient = JwtVerifier(FileKeys(path), ISSUER, AUDIENCE, leeway_seconds=30.0, clock=clock)
    fraction = JwtVerifier(FileKeys(path), ISSUER, AUDIENCE, leeway_seconds=0.5, clock=clock)
    text = token(exp=NOW + 100)
    for verifier, end in ((exact, NOW + 100), (lenient, NOW + 130), (fraction, NOW + 100.5)):
        clock.now = end - 0.01
        assert verifier.verify(text).name == "training"
        clock.now = end
        assert "has expired, at 2030-03-17 17:48" in refused(verifier, text)


@pytest.mark.parametrize("leeway", [0.0, 3600.0])
async def test_a_server_takes_the_leeway_from_its_settings(path: Path, leeway: float) -> None:
    settings = load_settings(
        jwks=str(path), jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_leeway_seconds=leeway
    )
    access = AccessControl.from_settings(settings)
    headers = {"authorization": f"Bearer {token(exp=int(time.time()) - 10)}"}
    if leeway:
        assert (await access.authenticate(headers)).name == "training"
    else:
        with pytest.raises(DeniedError, match="expired"):
            await access.authenticate(headers)
    access.close()


def refused(verifier: JwtVerifier, token: str) -> str:
    with pytest.raises(DeniedError) as caught:
        verifier.verify(token)
    assert caught.value.code == "UNAUTHENTICATED"
    text = str(caught.value)
    assert CANARY not in text
    assert len(token) < 20 or token not in text
    assert CANARY.encode() not in pickle.dumps(caught.value)
    return text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": NOW}, "has expired, at 2030-03-17 17:46"),
        ({"exp": NOW - 1}, "has expired, at 2030-03-17 17:46"),
        ({"nbf": NOW + 1}, "a claim is wrong"),
        ({"exp": None}, "a claim is wrong"),
        ({"exp": "soon"}, "a claim is wrong"),
        ({"nbf": NOW + 100}, "a claim is wrong"),
        ({"iss": "https://other.example"}, "a claim is wrong"),
        ({"iss": None}, "a claim is wrong"),
        ({"aud": "other"}, "a claim is wrong"),
        ({"aud": None}, "a claim is wrong"),
        ({"aud": ["other"]}, "a claim is wrong"),
        ({"sub": None}, "sub must be short"),
        ({"sub": ""}, "sub must be short"),
        ({"sub": 7}, "a claim is wrong"),
        ({"sub": "x\n" + CANARY}, "sub must be short"),
        ({"datasets": 7}, "datasets must be a list"),
        ({"datasets": [7, CANARY]}, "datasets must be a list"),
        ({"write": {"x": CANARY}}, "write must be a list"),
    ],
)
def test_invalid_claims_are_refused(
    verifier: JwtVerifier, changes: dict[str, Any], why: str
) -> None:
    assert why in refused(verifier, token(**changes))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_tokens_without_a_public_key_signature_are_refused(
    verifier: JwtVerifier, path: Path
) -> None:
    payload = b64(json.dumps(CLAIMS).encode())
    for header in ({"alg": "none"}, {"alg": "none", "kid": "ec"}, {"alg": "None"}):
        refused(verifier, f"{b64(json.dumps(header).encode())}.{payload}.")
    secrets = [
        path.read_bytes(),
        RSA.as_pem(private=False),
        json.dumps(RSA.as_dict(private=False)).encode(),
    ]
    for secret in secrets:  # a public key as the key of an HMAC
        text = f"{b64(json.dumps({'alg': 'HS256', 'kid': 'rsa'}).encode())}.{payload}"
        signature = hmac.digest(secret, text.encode(), hashlib.sha256)
        refused(verifier, f"{text}.{b64(signature)}")
    assert all(not name.startswith("HS") and name != "none" for name in ALGORITHMS)


def test_signatures_with_other_keys_are_refused(verifier: JwtVerifier) -> None:
    refused(verifier, token(FOREIGN))
    assert "not one of the issuer's" in refused(verifier, token(NEW))
    refused(verifier, token(RSA, "RS256").replace(".", "", 1))


def test_an_altered_or_truncated_token_is_refused(verifier: JwtVerifier) -> None:
    text = token()
    for index in range(0, len(text) - 1, 3):  # some bits of the last character are unused
        other = "A" if text[index] != "A" else "B"
        refused(verifier, text[:index] + other + text[index + 1 :])
    for length in range(1, len(text), 7):
        refused(verifier, text[:length])


def test_the_type_of_the_problem_is_logged(
    verifier: JwtVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        refused(verifier, token(aud="other"))
    assert "InvalidClaimError" in str([record.__dict__ for record in caplog.records])


@given(text=st.one_of(st.text(), st.tuples(st.text(), st.text(), st.text()).map(".".join)))
def test_arbitrary_text_is_refused_with_a_denied_error(text: str) -> None:
    refused(STATIC, text + CANARY)


class StaticKeys:
    refresh_due = False

    def current(self) -> Any:
        return jwk.KeySet.import_key_set(json.loads(key_set(EC)))

    def report_unknown_key(self) -> None: ...

    def refresh(self) -> None: ...


STATIC = JwtVerifier(StaticKeys(), ISSUER, AUDIENCE, clock=Clock(NOW))


def test_issuer_and_audience_are_required() -> None:
    for issuer, audience in (("", AUDIENCE), (ISSUER, "")):
        with pytest.raises(ConfigError, match="issuer and an audience"):
            JwtVerifier(StaticKeys(), issuer, audience)


def test_without_joserfc_the_error_names_the_extra(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "joserfc.jwk")
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[jwt\]'"):
        FileKeys(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"keys": 7}',
        b'{"keys": [7]}',
        b'{"keys": [{"kty": "RSA"}]}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "Y2FuYXJ5LWNsYWltLXZhbHVl"}]}',
        json.dumps({"keys": [{**EC.as_dict(private=False), "use": "enc"}]}).encode(),
        b" " * (1 << 20) + b"{}",
    ],
    ids=[
        "empty",
        "incomplete",
        "no object",
        "no list",
        "no key",
        "incomplete key",
        "no keys",
        "symmetric key",
        "key for encryption",
        "too long",
    ],
)
def test_a_malformed_key_set_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"jwks\.json: ") as caught:
        FileKeys(path)
    assert "Y2FuYXJ5" not in str(caught.value)


def test_a_key_set_has_1_mib_at_most(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(EC).ljust(1 << 20))
    FileKeys(path)
    path.write_bytes(key_set(EC).ljust((1 << 20) + 1))
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        FileKeys(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the keys in .*none"):
        open_key_source(str(tmp_path / "none"))


def test_a_changed_file_replaces_the_keys_if_it_is_valid(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = JwtVerifier(FileKeys(path, clock=clock), ISSUER, AUDIENCE, clock=Clock(NOW))
    refused(verifier, token(NEW))
    path.write_bytes(key_set(NEW))
    clock.now += 1
    assert verifier.verify(token(NEW)).name == "training"
    refused(verifier, token(EC))
    path.write_bytes(b"{")
    clock.now += 1
    with caplog.at_level(logging.ERROR):
        assert verifier.verify(token(NEW)).name == "training"
    assert "keeping the old ones" in caplog.text


def test_the_keys_of_a_file_are_never_due(path: Path) -> None:
    keys = FileKeys(path)
    keys.report_unknown_key()
    keys.refresh()
    assert not keys.refresh_due
    assert {key.kid for key in keys.current().keys} == {"rsa", "ec", "okp"}


# Keys from a URL.


class Issuer:
    """An issuer that counts its requests."""

    def __init__(self) -> None:
        self.content: bytes | None = key_set(EC)
        self.requests = 0

    def __call__(self, url: str) -> bytes:
        self.requests += 1
        if self.content is None:
            raise ConfigError(f"cannot fetch the keys from {url}: it is out")
        return self.content


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def url_authenticator(issuer: Issuer, clock: Clock) -> Authenticator:
    keys = UrlKeys("https://issuer.example/jwks", clock=clock, fetch=issuer)
    return Authenticator(jwt_verifier=JwtVerifier(keys, ISSUER, AUDIENCE, clock=Clock(NOW)))


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_keys_are_fetched_again_after_five_minutes(
    url_authenticator: Authenticator, issuer: Issuer, clock: Clock
) -> None:
    for _ in range(3):
        url_authenticator.authenticate(bearer(token()))
    assert issuer.requests == 1
    issuer.content = key_set(NEW)
    clock.now += 299.5
    url_authenticator.authenticate(bearer(token()))
    assert issuer.requests == 1
    clock.now += 0.5
    with pytest.raises(DeniedError):
        url_authenticator.authenticate(bearer(token()))
    assert issuer.requests == 2


def test_fetched_keys_are_good_for_five_minutes_again(issuer: Issuer, clock: Clock) -> None:
    keys = UrlKeys("https://issuer.example/jwks", clock=clock, fetch=issuer)
    keys.refresh()
    assert issuer.requests == 1  # not due
    for requests in (2, 3):
        clock.now += 299.5
        assert not keys.refresh_due
        clock.now += 0.5
        assert keys.refresh_due
        keys.refresh()
        keys.refresh()
        assert issuer.requests == requests


def test_an_unknown_key_is_looked_up_once(issuer: Issuer, clock: Clock) -> None:
    keys = UrlKeys("https://issuer.example/jwks", clock=clock, fetch=issuer)
    keys.report_unknown_key()
    clock.now += 9.5
    assert not keys.refresh_due
    clock.now += 0.5
    assert keys.refresh_due
    keys.refresh()
    clock.now += 100
    assert not keys.refresh_due


def test_an_unknown_key_causes_a_fetch_every_ten_seconds_at_most(
    url_authenticator: Authenticator, issuer: Issuer, clock: Clock
) -> None:
    issuer.content = key_set(EC, NEW)
    clock.now += 10
    assert url_authenticator.authenticate(bearer(token(NEW))).name == "training"
    assert issuer.requests == 2
    unknown = jwk.ECKey.generate_key("P-256", {"kid": "unknown"})
    for _ in range(20):
        with pytest.raises(DeniedError, match="not one of the issuer's"):
            url_authenticator.authenticate(bearer(token(unknown)))
    assert issuer.requests == 2
    clock.now += 10
    for _ in range(20):
        with pytest.raises(DeniedError, match="not one of the issuer's"):
            url_authenticator.authenticate(bearer(token(unknown)))
    assert issuer.requests == 3


def test_keys_stay_valid_while_the_issuer_is_unreachable(
    url_authenticator: Authenticator, issuer: Issuer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.content = None
    clock.now += 300
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert url_authenticator.authenticate(bearer(token())).name == "training"
    assert issuer.requests == 2
    assert "keeping the old ones" in caplog.text
    clock.now += 10
    url_authenticator.authenticate(bearer(token()))
    assert issuer.requests == 3


class CountedKeys(StaticKeys):
    """Keys that count how often they are refreshed, and say whether they should be."""

    def __init__(self, *due: bool) -> None:
        self.due = list(due)
        self.refreshes = 0

    @property
    def refresh_due(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.due.pop(0)

    def refresh(self) -> None:
        self.refreshes += 1


@pytest.mark.parametrize(
    ("due", "refreshes"),
    [((False, False), 0), ((True, False), 1), ((False, True), 1), ((True, True), 2)],
)
def test_keys_are_refreshed_only_where_that_is_due(due: tuple[bool, bool], refreshes: int) -> None:
    keys = CountedKeys(*due)
    tokens = Authenticator(jwt_verifier=JwtVerifier(keys, ISSUER, AUDIENCE, clock=Clock(NOW)))
    with pytest.raises(DeniedError):
        tokens.authenticate(bearer(token(FOREIGN)))
    assert (keys.due, keys.refreshes) == ([], refreshes)


def test_the_keys_of_a_valid_token_are_refreshed_if_they_are_old() -> None:
    keys = CountedKeys(True)
    tokens = Authenticator(jwt_verifier=JwtVerifier(keys, ISSUER, AUDIENCE, clock=Clock(NOW)))
    assert tokens.authenticate(bearer(token())).name == "training"
    assert keys.refreshes == 1


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/keys":
            body = key_set(EC)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif self.path in ("/away", "/moved"):
            self.send_response(302)
            target = "http://192.0.2.1/keys" if self.path == "/away" else "/keys"
            self.send_header("location", target)
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def web() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def list_clients(url: str) -> Iterator[socket.socket]:
    """Yield the open connections of this process to a server."""
    port = int(url.rpartition(":")[2])
    for each in gc.get_objects():
        # Lazy objects of other packages warn when their class is read.
        if not issubclass(type(each), socket.socket):
            continue
        if each.family == socket.AF_INET and each.fileno() >= 0:
            with suppress(OSError):
                if each.getpeername()[1] == port:
                    yield each


def test_keys_are_fetched_over_http(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    tokens = JwtVerifier(open_key_source(f"{web}/keys"), ISSUER, AUDIENCE, clock=Clock(NOW))
    assert tokens.verify(token()).name == "training"
    with pytest.raises(ConfigError, match=r"cannot fetch the keys from .*/none: status 404"):
        UrlKeys(f"{web}/none")
    assert fetch_url(f"{web}/moved") == key_set(EC)
    with pytest.raises(ConfigError, match="must use https") as caught:
        fetch_url(f"{web}/away")
    assert caught.tb is not None  # It refers to the response, which must be closed all the same.
    assert not list(list_clients(web))


def test_one_byte_more_than_the_largest_key_set_is_read(
    web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(jwks, "MAX_BYTES", 100)
    assert fetch_url(f"{web}/keys") == key_set(EC)[:101]
    with pytest.raises(ConfigError, match="has more than 100 bytes"):
        UrlKeys(f"{web}/keys")


def test_an_unreachable_issuer_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:1/: \[Errno \d+\] Conn"):
        UrlKeys("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",
        "ftp://127.0.0.1/keys",
        "file:///etc/passwd",
        "https://",
        "https://user:secret@issuer.example/",
        "https://[",
    ],
)
def test_unsafe_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        UrlKeys(url)
    assert "secret" not in str(caught.value)
    check_url("https://issuer.example/keys")
