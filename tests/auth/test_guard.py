"""From headers to principals, and from principals to what they may."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import ConfigError, DeniedError
from splitarrow.server.auth.guard import Guard, Headers
from splitarrow.server.auth.principal import ANYONE, Grants, Principal
from splitarrow.server.auth.tokens import TokenFile

CANARY = "canary-0123456789-secret"


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    path: Path = tmp_path_factory.mktemp("guard") / "tokens.toml"
    path.touch(0o600)
    path.write_text(f"[[tokens]]\nname = 'training'\ntoken = '{CANARY}'\ndatasets = ['flights']\n")
    return Guard(TokenFile(path))


def basic(name: str, token: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {CANARY}"},
        {"Authorization": f"bearer   {CANARY} "},
        [("user-agent", "x"), ("AUTHORIZATION", f"Bearer {CANARY}".encode())],
        [("authorization", basic("training", CANARY))],
        [("authorization", basic("", CANARY)), ("grpc-trace-bin", b"\xff")],
    ],
)
def test_a_token_tells_who_sends(guard: Guard, headers: Headers) -> None:
    assert guard.authenticate(headers) == Principal("training", Grants(("flights",)))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no token: send the header"),
        ([], "no token"),
        ({"authorisation": f"Bearer {CANARY}"}, "no token"),
        ({"authorization": ""}, "has to say 'Bearer TOKEN'"),
        ({"authorization": CANARY}, "has to say"),
        ({"authorization": f"Digest {CANARY}"}, "has to say"),
        ({"authorization": "Bearer"}, "visible ASCII"),
        ({"authorization": f"Bearer {CANARY} {CANARY}"}, "visible ASCII"),
        ({"authorization": f"Bearer {CANARY}é"}, "visible ASCII"),
        ({"authorization": f"Bearer {CANARY}x"}, "not known"),
        ({"authorization": f"Bearer {CANARY}" + "x" * 20_000}, "at most"),
        ({"authorization": b"Bearer \xff" + CANARY.encode()}, "visible ASCII"),
        ({"authorization": f"Basic {CANARY}"}, "malformed"),
        ({"authorization": "Basic " + base64.b64encode(b"\xff\xff").decode()}, "malformed"),
        ({"authorization": basic("other", CANARY)}, "not known"),
        ({"authorization": basic(CANARY, "")}, "visible ASCII"),
        ([("authorization", f"Bearer {CANARY}")] * 2, "more than one"),
    ],
)
def test_anything_else_is_refused(guard: Guard, headers: Headers, why: str) -> None:
    with pytest.raises(DeniedError, match=why) as caught:
        guard.authenticate(headers)
    assert caught.value.code == "UNAUTHENTICATED"
    assert CANARY not in str(caught.value) + repr(caught.value)
    assert CANARY.encode() not in pickle.dumps(caught.value)


@given(value=st.one_of(st.text(), st.binary()))
def test_no_header_makes_anything_but_a_refusal(guard: Guard, value: str | bytes) -> None:
    prefix = b"Bearer " if isinstance(value, bytes) else "Basic "
    for header in (value, prefix + value):  # type: ignore[operator]
        with pytest.raises(DeniedError):
            guard.authenticate({"authorization": header})


def test_a_token_may_be_a_password(guard: Guard) -> None:
    for name in ("training", ""):
        assert guard.exchange(name, CANARY) == CANARY
    for name, password in (("other", CANARY), ("training", CANARY + "x"), ("training", "\0")):
        with pytest.raises(DeniedError) as caught:
            guard.exchange(name, password)
        assert CANARY not in str(caught.value)


def test_a_guard_shows_and_gives_away_nothing(guard: Guard) -> None:
    principal = guard.authenticate({"authorization": f"Bearer {CANARY}"})
    shown = [repr(guard), str(guard), repr(vars(guard)), repr(principal), str(principal)]
    assert CANARY not in "".join(shown)
    assert repr(guard) == "<Guard token file>"
    assert pickle.loads(pickle.dumps(principal)) == principal
    assert CANARY.encode() not in pickle.dumps(principal)
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(guard)


def test_a_guard_without_anything_to_go_by_is_refused() -> None:
    with pytest.raises(ConfigError):
        Guard()


@pytest.mark.parametrize(
    ("glob", "dataset", "covered"),
    [
        ("flights", "flights", True),
        ("flights", "Flights", False),
        ("flights", "flights2", False),
        ("flights", "flights\n", False),
        ("trips/*", "trips/2026", True),
        ("trips/*", "trips/2026/may", True),
        ("trips/*", "trips", False),
        ("trips/?", "trips/ab", False),
        ("trips/[ab]", "trips/b", True),
        ("*", "anything/at all", True),
        ("*", "", True),
        ("../*", "flights", False),
        ("flights", "./flights", False),
        ("[", "[", True),
    ],
)
def test_globs(glob: str, dataset: str, covered: bool) -> None:
    principal = Principal("x", Grants(read=(glob,)))
    assert principal.may(dataset) == covered
    assert not principal.may(dataset, "write")
    assert Principal("x", Grants(write=(glob,))).may(dataset, "write") == covered


def test_what_is_not_granted_is_refused_by_name() -> None:
    principal = Principal("training", Grants(("flights",), ("scores",)))
    principal.require("flights")
    principal.require("scores", "write")
    for dataset, action in (("scores", "read"), ("flights", "write"), ("other", "read")):
        with pytest.raises(DeniedError, match=f"'training' may not {action} '{dataset}'") as caught:
            principal.require(dataset, action)
        assert caught.value.code == "PERMISSION_DENIED"
    assert not principal.may("flights", "own")
    ANYONE.require("anything")
    ANYONE.require("anything", "write")


def test_a_pathological_glob_is_quick() -> None:
    principal = Principal("x", Grants(("*a" * 30 + "b",)))
    assert not principal.may("a" * 5000)
