"""JSON Web Tokens: real signatures, real claims, keys from files and from a server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import pickle
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk, jwt

from splitarrow.errors import ConfigError, DeniedError, MissingExtraError
from splitarrow.server.auth.guard import Guard
from splitarrow.server.auth.jwks import FileKeys, UrlKeys, check_url, fetched, source_of
from splitarrow.server.auth.principal import Grants, Principal
from splitarrow.server.auth.webtokens import ALGORITHMS, WebTokens

from .conftest import Clock

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
def web_tokens(path: Path) -> WebTokens:
    return WebTokens(FileKeys(path), ISSUER, AUDIENCE, clock=Clock(NOW))


@pytest.mark.parametrize("algorithm", sorted(KEYS))
def test_a_good_token_is_taken(web_tokens: WebTokens, algorithm: str) -> None:
    assert algorithm in ALGORITHMS
    made = token(KEYS[algorithm], algorithm)
    expected = Principal("training", Grants(("flights", "trips/*")))
    assert web_tokens.principal(made) == expected
    guard = Guard(web_tokens=web_tokens)
    assert guard.authenticate({"authorization": f"Bearer {made}"}) == expected
    assert repr(guard) == "<Guard JSON Web Tokens>"


@pytest.mark.parametrize(
    ("changes", "grants"),
    [
        ({"datasets": None}, Grants()),
        ({"datasets": []}, Grants()),
        ({"datasets": "flights trips/*"}, Grants(("flights", "trips/*"))),
        ({"write": ["scores"], "datasets": None}, Grants((), ("scores",))),
        ({"aud": ["other", AUDIENCE]}, Grants(("flights", "trips/*"))),
        ({"exp": NOW - 20}, Grants(("flights", "trips/*"))),  # within the leeway
    ],
)
def test_claims_are_understood(
    web_tokens: WebTokens, changes: dict[str, Any], grants: Grants
) -> None:
    assert web_tokens.principal(token(**changes)).grants == grants


def refused(web_tokens: WebTokens, made: str) -> str:
    with pytest.raises(DeniedError) as caught:
        web_tokens.principal(made)
    assert caught.value.code == "UNAUTHENTICATED"
    text = str(caught.value)
    assert CANARY not in text
    assert len(made) < 20 or made not in text
    assert CANARY.encode() not in pickle.dumps(caught.value)
    return text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": NOW - 31}, "it has expired"),
        ({"exp": None}, "a claim is wrong"),
        ({"exp": "soon"}, "a claim is wrong"),
        ({"nbf": NOW + 100}, "a claim is wrong"),
        ({"iss": "https://other.example"}, "a claim is wrong"),
        ({"iss": None}, "a claim is wrong"),
        ({"aud": "other"}, "a claim is wrong"),
        ({"aud": None}, "a claim is wrong"),
        ({"aud": ["other"]}, "a claim is wrong"),
        ({"sub": None}, "a claim is wrong"),
        ({"sub": 7}, "a claim is wrong"),
        ({"sub": "x\n" + CANARY}, "sub is no name"),
        ({"datasets": 7}, "datasets is no list"),
        ({"datasets": [7, CANARY]}, "datasets is no list"),
        ({"write": {"x": CANARY}}, "write is no list"),
    ],
)
def test_wrong_claims_are_refused(web_tokens: WebTokens, changes: dict[str, Any], why: str) -> None:
    assert why in refused(web_tokens, token(**changes))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_tokens_that_anybody_can_make_are_refused(web_tokens: WebTokens, path: Path) -> None:
    payload = b64(json.dumps(CLAIMS).encode())
    for header in ({"alg": "none"}, {"alg": "none", "kid": "ec"}, {"alg": "None"}):
        refused(web_tokens, f"{b64(json.dumps(header).encode())}.{payload}.")
    secrets = [
        path.read_bytes(),
        RSA.as_pem(private=False),
        json.dumps(RSA.as_dict(private=False)).encode(),
    ]
    for secret in secrets:  # a public key as the key of an HMAC
        text = f"{b64(json.dumps({'alg': 'HS256', 'kid': 'rsa'}).encode())}.{payload}"
        signature = hmac.digest(secret, text.encode(), hashlib.sha256)
        refused(web_tokens, f"{text}.{b64(signature)}")
    assert all(not name.startswith("HS") and name != "none" for name in ALGORITHMS)


def test_foreign_and_unknown_keys_are_refused(web_tokens: WebTokens) -> None:
    refused(web_tokens, token(FOREIGN))
    assert "not the issuer's" in refused(web_tokens, token(NEW))
    refused(web_tokens, token(RSA, "RS256").replace(".", "", 1))


def test_every_altered_character_is_refused(web_tokens: WebTokens) -> None:
    made = token()
    for index in range(0, len(made) - 1, 3):  # the last one may have bits that say nothing
        other = "A" if made[index] != "A" else "B"
        refused(web_tokens, made[:index] + other + made[index + 1 :])
    for length in range(1, len(made), 7):
        refused(web_tokens, made[:length])


@given(text=st.one_of(st.text(), st.tuples(st.text(), st.text(), st.text()).map(".".join)))
def test_no_text_makes_anything_but_a_refusal(text: str) -> None:
    refused(STATIC, text + CANARY)


class StaticKeys:
    refresh_due = False

    def current(self) -> Any:
        return jwk.KeySet.import_key_set(json.loads(key_set(EC)))

    def missed(self) -> None: ...

    def refresh(self) -> None: ...


STATIC = WebTokens(StaticKeys(), ISSUER, AUDIENCE, clock=Clock(NOW))


def test_issuer_and_audience_are_a_must() -> None:
    for issuer, audience in (("", AUDIENCE), (ISSUER, "")):
        with pytest.raises(ConfigError, match="issuer and an audience"):
            WebTokens(StaticKeys(), issuer, audience)


def test_without_the_package_the_extra_is_named(
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
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"jwks\.json: ") as caught:
        FileKeys(path)
    assert "Y2FuYXJ5" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the keys in .*none"):
        source_of(str(tmp_path / "none"))


def test_changed_keys_are_taken_over(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    web_tokens = WebTokens(FileKeys(path, clock=clock), ISSUER, AUDIENCE, clock=Clock(NOW))
    refused(web_tokens, token(NEW))
    path.write_bytes(key_set(NEW))
    clock.now += 1
    assert web_tokens.principal(token(NEW)).name == "training"
    refused(web_tokens, token(EC))
    path.write_bytes(b"{")
    clock.now += 1
    with caplog.at_level(logging.ERROR):
        assert web_tokens.principal(token(NEW)).name == "training"
    assert "the old ones stay" in caplog.text


# Keys from a URL.


class Issuer:
    """An issuer that counts how often it is asked."""

    def __init__(self) -> None:
        self.content: bytes | None = key_set(EC)
        self.asked = 0

    def __call__(self, url: str) -> bytes:
        self.asked += 1
        if self.content is None:
            raise ConfigError(f"cannot fetch the keys from {url}: it is out")
        return self.content


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def url_guard(issuer: Issuer, clock: Clock) -> Guard:
    keys = UrlKeys("https://issuer.example/jwks", clock=clock, fetch=issuer)
    return Guard(web_tokens=WebTokens(keys, ISSUER, AUDIENCE, clock=Clock(NOW)))


def bearer(made: str) -> dict[str, str]:
    return {"authorization": f"Bearer {made}"}


def test_keys_are_fetched_again_when_they_are_old(
    url_guard: Guard, issuer: Issuer, clock: Clock
) -> None:
    for _ in range(3):
        url_guard.authenticate(bearer(token()))
    assert issuer.asked == 1
    issuer.content = key_set(NEW)
    clock.now += 300
    with pytest.raises(DeniedError):
        url_guard.authenticate(bearer(token()))
    assert issuer.asked == 2


def test_a_new_key_is_fetched_at_once_but_not_all_the_time(
    url_guard: Guard, issuer: Issuer, clock: Clock
) -> None:
    issuer.content = key_set(EC, NEW)
    clock.now += 10
    assert url_guard.authenticate(bearer(token(NEW))).name == "training"
    assert issuer.asked == 2
    unknown = jwk.ECKey.generate_key("P-256", {"kid": "unknown"})
    for _ in range(20):
        with pytest.raises(DeniedError, match="not the issuer's"):
            url_guard.authenticate(bearer(token(unknown)))
    assert issuer.asked == 2
    clock.now += 10
    for _ in range(20):
        with pytest.raises(DeniedError, match="not the issuer's"):
            url_guard.authenticate(bearer(token(unknown)))
    assert issuer.asked == 3


def test_an_issuer_that_is_out_does_not_lock_out(
    url_guard: Guard, issuer: Issuer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.content = None
    clock.now += 300
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert url_guard.authenticate(bearer(token())).name == "training"
    assert issuer.asked == 2
    assert "the old ones stay" in caplog.text
    clock.now += 10
    url_guard.authenticate(bearer(token()))
    assert issuer.asked == 3


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/keys":
            body = key_set(EC)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif self.path == "/away":
            self.send_response(302)
            self.send_header("location", "http://192.0.2.1/keys")
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


def test_keys_come_over_http(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    tokens = WebTokens(source_of(f"{web}/keys"), ISSUER, AUDIENCE, clock=Clock(NOW))
    assert tokens.principal(token()).name == "training"
    with pytest.raises(ConfigError, match=r"cannot fetch the keys from .*/none: status 404"):
        UrlKeys(f"{web}/none")
    with pytest.raises(ConfigError, match="by https only"):
        fetched(f"{web}/away")


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ConfigError, match=r"cannot fetch the keys from http://127\.0\.0\.1:1/: "):
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
def test_keys_come_from_nowhere_else(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        UrlKeys(url)
    assert "secret" not in str(caught.value)
    check_url("https://issuer.example/keys")
