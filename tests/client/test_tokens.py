"""Tokens that renew themselves: of functions, and of files that are replaced."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.access_tokens import TokenIssuer
from helpers.clock import Clock
from splitarrow import aio
from splitarrow.client.tokens import (
    FileToken,
    FixedToken,
    FunctionToken,
    parse_token,
    read_expiry,
    usable_seconds,
)
from splitarrow.errors import DeniedError, UsageError

TABLE = pa.table({"n": [1, 2, 3]})
CANARY = "canary-token-of-anna"


class Tokens:
    """A function that returns one token after another, and counts its calls."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = list(tokens)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]


def read_token(path: str) -> str:
    return Path(path).read_text()


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


@pytest.fixture
def uri(issuer: TokenIssuer) -> Iterator[str]:
    settings = issuer.settings()
    with splitarrow.serve({"d": TABLE}, control="grpc://127.0.0.1:0", **settings) as server:
        yield str(server.control_uri)


def replace(path: Path, text: str) -> None:
    """Replace a file as Kubernetes does: a link to a folder leads to another folder."""
    folder = path.parent / f"..{time.monotonic_ns()}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    link = path.parent / "..data"
    new_link = path.parent / "..data_tmp"
    new_link.symlink_to(folder.name)
    os.replace(new_link, link)
    if not path.is_symlink():
        path.symlink_to(f"..data/{path.name}")


def test_a_jwt_is_used_until_shortly_before_its_expiry(issuer: TokenIssuer) -> None:
    clock = Clock(1000.0)
    tokens = Tokens(*(issuer.issue(exp=end) for end in (4600, 8200)))
    source = FunctionToken(tokens, clock=clock)
    for now, calls in ((1000.0, 1), (4539.0, 1), (4541.0, 2), (4600.0, 2)):
        clock.now = now
        assert source.current() == issuer.issued[calls - 1]
        assert tokens.calls == calls
    clock.now = 1000.0  # set back
    source.current()
    assert tokens.calls == 3


@pytest.mark.parametrize(
    ("left", "usable"), [(3600.0, 3540.0), (120.0, 90.0), (2.0, 1.5), (0.0, 1.0), (-5.0, 1.0)]
)
def test_a_short_lived_jwt_is_renewed_earlier(
    issuer: TokenIssuer, left: float, usable: float
) -> None:
    assert usable_seconds(issuer.issue(exp=1000 + left), 1000.0) == usable


@pytest.mark.parametrize(
    "token",
    ["opaque", "a.b.c", "..", "a.e30.c", "a.bnVsbA.c", "a.eyJleHAiOjFlOTk5fQ.c", "a.\xff.c"],
)
def test_other_tokens_state_no_expiry_and_are_used_for_a_short_time(token: str) -> None:
    assert read_expiry(token) is None
    clock = Clock(0.0)
    tokens = Tokens("first", "second")
    source = FunctionToken(tokens, clock=clock)
    for now, token in ((0.0, "first"), (29.0, "first"), (31.0, "second")):
        clock.now = now
        assert source.current() == token


def test_a_refused_token_is_asked_for_again_unless_another_thread_did() -> None:
    source = FunctionToken(Tokens("first", "second"))
    assert source.current() == "first"
    source.reject("first")
    assert source.current() == "second"
    source.reject("first")
    assert source.current() == "second"


@pytest.mark.parametrize("value", [None, b"token", 7])
def test_a_function_must_return_text(value: Any) -> None:
    with pytest.raises(UsageError, match=f"returned {type(value).__name__}; expected str"):
        FunctionToken(lambda: value).current()


def test_the_errors_of_a_function_reach_the_caller() -> None:
    def fail() -> str:
        raise LookupError("no vault")

    with pytest.raises(LookupError, match="no vault"):
        splitarrow.connect("grpc://127.0.0.1:1", fail)


@pytest.mark.parametrize("token", ["a\nb", "", "tökén", "a\x00b"])
def test_no_error_quotes_a_token(tmp_path: Path, token: str) -> None:
    path = tmp_path / "token"
    path.write_text(f"{CANARY}{token}" if token else "")
    for source in (lambda: FixedToken(path.read_text()), lambda: FileToken(path).current()):
        with pytest.raises(UsageError) as caught:
            source()
        assert CANARY not in str(caught.value)
    assert CANARY not in f"{FixedToken(CANARY)!r} {FunctionToken(lambda: CANARY)!r}"


def test_a_file_is_read_again_after_its_link_leads_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "token"
    replace(path, "first\n")
    source = FileToken(path)
    assert source.current() == "first"
    replace(path, "second\n")
    source.reject("first")
    assert source.current() == "second"
    (tmp_path / "..data").unlink()
    source.reject("second")
    assert source.current() == "second"  # the last one that could be read


def test_files_that_have_no_token_are_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(UsageError, match=f"cannot read the token in {path}: No such file"):
        FileToken(path).current()
    path.write_bytes(b"x" * (65 << 10))
    with pytest.raises(UsageError, match="more than 65536 bytes"):
        FileToken(path).current()


def test_arguments_that_are_no_token_are_refused(tmp_path: Path) -> None:
    forms: list[Any] = [splitarrow.connect, aio.connect, splitarrow.open, aio.open]
    for form in forms:
        with pytest.raises(UsageError, match="token and token_file exclude each other"):
            form("grpc://127.0.0.1:1", token="a", token_file=tmp_path)
    with pytest.raises(UsageError, match="type int; expected a str, or a function"):
        parse_token(7)  # type: ignore[arg-type]
    for arguments in ({"token": lambda: "a"}, {"token_file": tmp_path}):
        with pytest.raises(UsageError, match="a token is for a control plane"):
            splitarrow.open("tcp://127.0.0.1:1/d", **arguments)  # type: ignore[arg-type]


def test_equal_sources_share_a_kept_client() -> None:
    class Unhashable(list[str]):
        def __call__(self) -> str:
            return "a"

    assert parse_token("a") == parse_token("a\n") != parse_token("b")
    assert FileToken("a") == FileToken(Path("a")) != FileToken("b")
    assert hash(FunctionToken(read_expiry)) == hash(FunctionToken(read_expiry))  # type: ignore[arg-type]
    one, other = Unhashable(), Unhashable()
    assert FunctionToken(one) == FunctionToken(one) != FunctionToken(other)
    assert FunctionToken(one) != FixedToken("a")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # the latter passes for another host
@pytest.mark.parametrize("transport", ["tcp", "flight", "auto"])
def test_a_function_is_asked_again_once_after_a_refusal(
    issuer: TokenIssuer, uri: str, transport: str, host: str
) -> None:
    uri = uri.replace("127.0.0.1", host)
    tokens = Tokens("stale", issuer.issue())
    with splitarrow.open(f"{uri}/d", token=tokens, transport=transport) as stream:
        assert stream.read_all() == TABLE
    assert tokens.calls == 2
    wrong = Tokens("stale", "stale", issuer.issue())
    with pytest.raises(DeniedError, match="does not know the token") as caught:
        splitarrow.open(f"{uri}/d", token=wrong)
    assert "stale" not in str(caught.value)


def test_a_refused_token_does_not_change_how_reads_are_planned(
    issuer: TokenIssuer, uri: str
) -> None:
    far = uri.replace("127.0.0.1", "0.0.0.0")  # passes for another host
    with splitarrow.Client(far, Tokens("stale", issuer.issue()), check=False) as client:
        with client.read("d") as stream:
            assert stream.read_all() == TABLE
        assert client.channel.plans_by_do_get


def test_every_call_sends_the_current_token(issuer: TokenIssuer, uri: str) -> None:
    tokens = Tokens("stale", issuer.issue(), issuer.issue())
    with splitarrow.connect(uri, tokens) as client:
        source: Any = client.channel._token  # pyright: ignore[reportPrivateUsage]
        for call in (client.datasets, lambda: client.schema("d"), lambda: client["d"].to_arrow()):
            source.reject(source.current())
            call()
        with pytest.raises(DeniedError):
            splitarrow.connect(uri, "stale").close()
    assert tokens.calls == 5


def test_an_upload_that_is_refused_succeeds_when_it_is_repeated(
    issuer: TokenIssuer, tmp_path: Path
) -> None:
    settings = issuer.settings(writable=tmp_path / "uploads")
    with splitarrow.serve({}, control="grpc://127.0.0.1:0", **settings) as server:
        tokens = Tokens(issuer.issue(), "revoked", issuer.issue())
        with splitarrow.connect(str(server.control_uri), tokens) as client:
            source: Any = client.channel._token  # pyright: ignore[reportPrivateUsage]
            source.reject(source.current())
            with pytest.raises(DeniedError):
                client.put("scores", TABLE)
            assert client.put("scores", TABLE).rows == 3


async def test_a_file_works_in_every_form_of_the_api(
    issuer: TokenIssuer, uri: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(issuer.issue() + "\n")
    with splitarrow.connect(uri, token_file=path) as client:
        assert pickle.loads(pickle.dumps(client)).info("d").rows == 3
    with splitarrow.connect([uri, uri.replace("127.0.0.1", "localhost")], token_file=path) as many:
        assert many.info("d").rows == 3
        with pickle.loads(pickle.dumps(many)) as copy:
            assert copy.info("d").rows == 3
    with splitarrow.open(f"{uri}/d", token_file=path) as stream:
        assert stream.read_all() == TABLE
    async with aio.connect(uri, token_file=path) as client:
        assert (await client.info("d")).rows == 3
    async with aio.open(f"{uri}/d", token_file=path) as stream:
        assert await stream.read_all() == TABLE


def test_a_client_with_a_function_can_be_pickled_if_the_function_can(
    issuer: TokenIssuer, uri: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(issuer.issue())
    with splitarrow.connect(uri, partial(read_token, str(path))) as client:
        assert pickle.loads(pickle.dumps(client)).info("d").rows == 3
    with (
        splitarrow.connect(uri, lambda: path.read_text()) as client,
        pytest.raises(UsageError, match=r"cannot be pickled .*; use token_file=PATH"),
    ):
        pickle.dumps(client)


FORK = """
import os, sys
import splitarrow
uri, path = sys.argv[1:]
read = lambda: open(path).read()
old = splitarrow.connect(uri, read)
pid = os.fork()
if not pid:
    with splitarrow.connect(uri, read) as client:
        print(client.info("d").rows, client["d"].to_arrow().num_rows, list(client), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.slow
def test_a_function_works_in_a_forked_process(
    issuer: TokenIssuer, uri: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(issuer.issue())
    command = [sys.executable, "-W", "ignore", "-c", FORK, uri, str(path)]
    assert subprocess.check_output(command, text=True, timeout=60) == "3 3 ['d']\n"


def test_a_read_over_http_sends_the_current_token(issuer: TokenIssuer, tmp_path: Path) -> None:
    settings = issuer.settings(http="http://127.0.0.1:0")
    with splitarrow.serve({"d": TABLE}, **settings) as server:
        tokens = Tokens("stale", issuer.issue())
        with splitarrow.open(f"{server.http_uri}/d", token=tokens, filter="n > 1") as stream:
            assert stream.read_all()["n"].to_pylist() == [2, 3]
        assert tokens.calls == 2
        (tmp_path / "token").write_text(issuer.issue())
        with splitarrow.open(f"{server.http_uri}/d", token_file=tmp_path / "token") as stream:
            assert stream.read_all() == TABLE
        with pytest.raises(DeniedError, match="does not know the token"):
            splitarrow.open(f"{server.http_uri}/d", token=Tokens("stale", "stale"))
