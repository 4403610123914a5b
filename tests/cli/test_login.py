"""``splitarrow login`` and ``logout``: what they print, and what they keep."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.cli import Run, Start
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.oauth_server import CLIENT, SECRET, SERVICE, OAuthServer, oauth_server
from helpers.waiting import wait_until
from splitarrow.client.tokens import read_expiry

TABLE = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def issuer() -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


@pytest.fixture
def uri(issuer: OAuthServer) -> Iterator[str]:
    settings = issuer.settings(control="grpc://127.0.0.1:0")
    with splitarrow.serve({"d": TABLE}, **settings) as server:
        yield str(server.control_uri)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"SPLITARROW_LOGINS": str(tmp_path / "logins")}


def check_no_secrets(issuer: OAuthServer, *results: Any) -> None:
    for result in results:
        for secret in issuer.secrets():
            assert secret not in result.stdout + result.stderr


def test_a_login_is_approved_in_a_browser_and_used_by_all_commands(
    run: Run, issuer: OAuthServer, uri: str, environment: dict[str, str]
) -> None:
    refused = run("ls", uri, env=environment)
    assert refused.returncode == 1
    done = run("login", uri, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"Open {issuer.issuer}/approve and enter the code WDJB-0000",
        f"or open {issuer.issuer}/approve?user_code=WDJB-0000 and compare the code",
    ]
    assert done.stderr.splitlines() == [
        f"splitarrow: {issuer.issuer} asks you to let {CLIENT} log in",
        f"splitarrow: logged in to {uri}; the token renews itself",
    ]
    assert issuer.requests[0][1] == {
        "client_id": CLIENT,
        "scope": "openid offline_access",
        "audience": "splitarrow",
    }
    listed = run("ls", uri, "--json", env=environment)
    assert [each["name"] for each in json.loads(listed.stdout)] == ["d"]
    wrong = run("ls", uri, "--token", "explicit-token-000", env=environment)
    assert wrong.returncode == 1
    out = run("logout", uri, env=environment)
    assert (out.stdout, out.stderr) == ("", f"splitarrow: logged out of {uri}\n")
    assert run("ls", uri, env=environment).returncode == 1
    again = run("logout", uri, "--json", env=environment)
    assert json.loads(again.stdout) == {"server": uri, "removed": False}
    check_no_secrets(issuer, refused, done, listed, wrong, out, again)


def test_json_shows_the_code_before_it_is_approved(
    start: Start, issuer: OAuthServer, uri: str, environment: dict[str, str]
) -> None:
    issuer.approves = "pending"
    process = start("login", uri, "--json", env=os.environ | environment)
    assert process.stdout is not None
    shown = json.loads(process.stdout.readline())
    assert shown == {
        "issuer": issuer.issuer,
        "client_id": CLIENT,
        "verification_uri": f"{issuer.issuer}/approve",
        "verification_uri_complete": f"{issuer.issuer}/approve?user_code=WDJB-0000",
        "user_code": "WDJB-0000",
        "expires_in": 60.0,
    }
    wait_until(lambda: len(issuer.answers) > 1)  # it polls
    with issuer.lock:
        for device in issuer.devices.values():
            device.state = "approved"
    rest, errors = process.communicate(timeout=60)
    done = json.loads(rest)
    assert (process.returncode, errors) == (0, "")
    assert re.match(r"20\d\d-\d\d-\d\dT", done.pop("expires"))
    assert done == {"server": uri, "issuer": issuer.issuer, "client_id": CLIENT, "renews": True}


@pytest.mark.parametrize("place", ["file", "prompt", "environment"])
def test_a_client_logs_in_with_a_secret_that_is_no_argument(
    run: Run,
    issuer: OAuthServer,
    uri: str,
    environment: dict[str, str],
    tmp_path: Path,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"env": environment}
    arguments = ["--client-id", SERVICE]
    if place == "file":
        (tmp_path / "secret").write_text(f"{SECRET}\n")
        arguments += ["--client-secret-file", str(tmp_path / "secret")]
    elif place == "prompt":
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
        arguments += ["--client-secret-file", "-"]
    else:
        options["env"] = {**environment, "SPLITARROW_CLIENT_SECRET": SECRET}
    done = run("login", uri, *arguments, **options)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    listed = run("ls", uri, env=environment)
    assert listed.returncode == 0
    check_no_secrets(issuer, done, listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--client-secret-file", "missing"), "cannot read the secret in missing: No such file"),
        (("--client-secret-file", "empty"), "the secret of the client is empty"),
        (("--client-secret-file", "secret"), "a client secret needs --client-id"),
        (("--client-secret-file", "secret", "--client-id", SERVICE), "refuses: because invalid_cl"),
        (("--client-id", "unknown"), "refuses: because invalid_client"),
    ],
)
def test_a_login_that_fails_keeps_nothing(
    run: Run,
    uri: str,
    environment: dict[str, str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "secret").write_text("canary-of-a-secret")
    done = run("login", uri, *arguments, env=environment)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "canary" not in done.stderr
    assert not list((tmp_path / "logins").glob("*.json"))


def test_servers_that_have_no_logins_are_named(
    run: Run, tmp_path: Path, environment: dict[str, str]
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("[[tokens]]\nname = 'a'\ntoken = 'token-of-anna-000'\ndatasets = ['*']\n")
    for settings in ({}, {"token_file": tokens}):
        given: dict[str, Any] = {"control": "grpc://127.0.0.1:0", **settings}
        with splitarrow.serve({"d": TABLE}, **given) as server:
            done = run("login", server.control_uri, env=environment)
        assert done.returncode == 1
        assert "this server has no issuer of tokens" in done.stderr
    several = run("login", "grpc://a,b", env=environment)
    assert (several.returncode, "name one server" in several.stderr) == (2, True)


def test_a_server_that_is_elsewhere_names_no_issuer_on_this_host(
    run: Run, issuer: OAuthServer, uri: str, environment: dict[str, str]
) -> None:
    elsewhere = uri.replace("127.0.0.1", "0.0.0.0")  # passes for another host
    done = run("login", elsewhere, env=environment)
    assert done.returncode == 2
    warning, error = done.stderr.splitlines()
    assert f"the connection to {elsewhere} is not encrypted" in warning
    assert f"the issuer {issuer.issuer} is on this host, but the server is not" in error
    assert issuer.requests == []


@pytest.mark.slow
def test_a_login_outlives_its_tokens_at_a_daemon(
    run: Run,
    issuer: OAuthServer,
    daemon: StartDaemon,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    issuer.token_seconds = 1.0
    path = write_file(tmp_path / "d.arrow", TABLE)
    server = daemon({"d": path}, control="grpc://127.0.0.1:0", **issuer.settings())
    uri = str(server.control_uri)
    done = run("login", uri, env=environment)
    assert done.returncode == 0, done.stderr
    count = 0
    for _ in range(3):  # each command starts later than the last token expires
        listed = run("ls", uri, "--json", env=environment)
        assert listed.returncode == 0, listed.stderr
        count = len(issuer.answers)
        issued = issuer.answers[-1]["access_token"]
        wait_until(lambda issued=issued: _has_expired(issued))
    assert count >= 4
    with issuer.lock:
        issuer.refresh_tokens.clear()
    ended = run("ls", uri, env=environment)
    assert ended.returncode == 1
    assert f"run splitarrow login {uri}" in ended.stderr


def _has_expired(token: str) -> bool:
    return time.time() > (read_expiry(token) or 0.0)
