"""A relay asks its upstream who a reader is, and uses the answer as long as it holds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from joserfc import jwk, jwt

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.relays import CONTROL
from helpers.waiting import wait_until
from splitarrow.errors import ProtocolError, RemoteError
from splitarrow.protocol.uri import DataUri
from splitarrow.relay import identity
from splitarrow.relay.identity import UpstreamIdentities
from splitarrow.server.auth.principal import Permission, Principal
from splitarrow.testing import Daemon

ANNA = "token-of-anna-000000"


def write_token(path: Path, *globs: str, name: str = "anna") -> Path:
    path.write_text(f'[[tokens]]\nname = "{name}"\ntoken = "{ANNA}"\ndatasets = {list(globs)}\n')
    path.chmod(0o600)
    return path


@pytest.fixture
def start(tmp_path: Path, daemon: StartDaemon) -> Callable[..., Daemon]:
    data = write_file(tmp_path / "n.arrow", pa.table({"n": [1]}), batch_rows=1)

    def start(*globs: str, name: str = "anna") -> Daemon:
        tokens = write_token(tmp_path / f"{'-'.join(globs)}-{name}.toml", *globs, name=name)
        return daemon({"n": data}, control=CONTROL, token_file=tokens)

    return start


def ask(*servers: Daemon) -> UpstreamIdentities:
    return UpstreamIdentities([DataUri.parse(str(server.control_uri)) for server in servers])


def reads(principal: Principal | None, *names: str) -> list[str]:
    assert principal is not None
    return [name for name in names if principal.may(Permission.READ, name)]


def test_a_reader_may_read_what_all_daemons_allow(start: Callable[..., Daemon]) -> None:
    asked = ask(start("a*", "b"), start("ab", "b", "c"))
    anna = asked.identify(ANNA)
    assert anna is not None
    assert anna.name == "anna"
    assert not anna.is_operator
    assert reads(anna, "a", "ab", "b", "c") == ["ab", "b"]
    assert not anna.may(Permission.WRITE, "b")
    assert asked.identify("token-of-nobody-0000") is None
    assert ask(start("b"), start("b", name="berta")).identify(ANNA) is None


def test_an_answer_holds_for_a_time(
    start: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = start("n")
    asked = ask(upstream)
    assert reads(asked.identify(ANNA), "n") == ["n"]
    upstream.stop()
    assert reads(asked.identify(ANNA), "n") == ["n"]
    with pytest.raises(RemoteError, match=r"cannot ask grpc://.* about the token") as caught:
        asked.identify("token-of-berta-00000")
    assert caught.value.code == "UNAVAILABLE"
    assert "token-of" not in str(caught.value)
    monkeypatch.setattr(identity, "_MAX_SECONDS", 0.0)
    upstream.start()
    wait_until(lambda: reads(ask(upstream).identify(ANNA), "n") == ["n"])
    asked = ask(upstream)
    asked.identify(ANNA)
    upstream.stop()
    with pytest.raises(RemoteError, match="cannot ask"):
        asked.identify(ANNA)


def test_an_unknown_token_is_asked_about_once(
    start: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = start("n")
    asked = ask(upstream)
    assert asked.identify("token-of-berta-00000") is None
    upstream.stop()
    assert asked.identify("token-of-berta-00000") is None
    monkeypatch.setattr(identity, "_MAX_ANSWERS", 1)
    with pytest.raises(RemoteError):
        asked.identify(ANNA)
    with pytest.raises(RemoteError):
        asked.identify("token-of-berta-00000")  # it was forgotten for the other one


def test_callers_with_one_token_wait_for_one_answer(
    start: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(start("n"))
    monkeypatch.setattr(asked, "_calls", threading.BoundedSemaphore(1))
    found: list[Principal | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(asked.identify(ANNA))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [reads(each, "n") for each in found] == [["n"]] * 8
    with asked._calls, pytest.raises(RemoteError, match="too many new tokens"):  # pyright: ignore[reportPrivateUsage]
        asked.identify("token-of-berta-00000")


def test_a_json_web_token_holds_no_longer_than_it_states(
    tmp_path: Path, daemon: StartDaemon
) -> None:
    key = jwk.ECKey.generate_key("P-256", {"kid": "ec"})
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    data = write_file(tmp_path / "n.arrow", pa.table({"n": [1]}), batch_rows=1)
    upstream = daemon({"n": data}, control=CONTROL, jwks=keys, jwt_issuer="i", jwt_audience="a")
    for seconds, most in ((20, 20), (3600, 60)):
        ends = int(time.time()) + seconds
        claims = {"iss": "i", "aud": "a", "sub": "anna", "exp": ends, "datasets": ["n"]}
        token = jwt.encode({"alg": "ES256", "kid": "ec"}, claims, key)
        with splitarrow.connect(str(upstream.control_uri), token) as client:
            answer = json.loads(client.act("identity"))
        assert most - 10 < answer.pop("seconds") <= most
        assert answer == {"name": "anna", "read": [["n"]]}
        assert reads(ask(upstream).identify(token), "n", "m") == ["n"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"name": "a", "read": [["*"]]}',
        b'{"name": "", "read": [["*"]], "seconds": 1}',
        b'{"name": "a", "read": [], "seconds": 1}',
        b'{"name": "a", "read": ["*"], "seconds": 1}',
        b'{"name": "a", "read": [[1]], "seconds": 1}',
        b'{"name": "a", "read": [["*"]], "seconds": NaN}',
        b'{"name": "a", "read": [["*"]], "seconds": -1}',
    ],
)
def test_malformed_answers_grant_nothing(answer: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        identity._parse(answer)  # pyright: ignore[reportPrivateUsage]


def test_a_server_without_tokens_lets_everybody_read(tmp_path: Path, daemon: StartDaemon) -> None:
    data = write_file(tmp_path / "n.arrow", pa.table({"n": [1]}), batch_rows=1)
    upstream = daemon({"n": data}, control=CONTROL)
    assert reads(ask(upstream).identify(ANNA), "n") == ["n"]
