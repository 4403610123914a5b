"""Authentication by headers, and the grants of principals."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import ConfigError, DeniedError
from splitarrow.server.auth.access_control import Authenticator, Headers
from splitarrow.server.auth.principal import ANYONE, Grants, Permission, Principal
from splitarrow.server.auth.token_file import TokenFile

READ, WRITE = Permission.READ, Permission.WRITE
CANARY = "canary-0123456789-secret"


@pytest.fixture(scope="module")
def authenticator(tmp_path_factory: pytest.TempPathFactory) -> Authenticator:
    path: Path = tmp_path_factory.mktemp("authenticator") / "tokens.toml"
    path.touch(0o600)
    path.write_text(f"[[tokens]]\nname = 'training'\ntoken = '{CANARY}'\ndatasets = ['flights']\n")
    return Authenticator(TokenFile(path))


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
def test_a_token_identifies_its_principal(authenticator: Authenticator, headers: Headers) -> None:
    assert authenticator.authenticate(headers) == Principal("training", Grants(("flights",)))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "no token: send the header"),
        ([], "no token"),
        ({"authorisation": f"Bearer {CANARY}"}, "no token"),
        ({"authorization": ""}, "must be 'Bearer TOKEN'"),
        ({"authorization": CANARY}, "must be"),
        ({"authorization": f"Digest {CANARY}"}, "must be"),
        ({"authorization": "Bearer"}, "printable ASCII"),
        ({"authorization": f"Bearer {CANARY} {CANARY}"}, "printable ASCII"),
        ({"authorization": f"Bearer {CANARY}é"}, "printable ASCII"),
        ({"authorization": f"Bearer {CANARY}x"}, "does not know the token"),
        ({"authorization": f"Bearer {CANARY}" + "x" * 20_000}, "the limit is"),
        ({"authorization": b"Bearer \xff" + CANARY.encode()}, "printable ASCII"),
        ({"authorization": f"Basic {CANARY}"}, "malformed"),
        ({"authorization": "Basic " + base64.b64encode(b"\xff\xff").decode()}, "malformed"),
        ({"authorization": basic("other", CANARY)}, "does not know the token"),
        ({"authorization": basic(CANARY, "")}, "printable ASCII"),
        ([("authorization", f"Bearer {CANARY}")] * 2, "more than one"),
    ],
)
def test_missing_and_malformed_tokens_are_refused_without_quoting_them(
    authenticator: Authenticator, headers: Headers, why: str
) -> None:
    with pytest.raises(DeniedError, match=why) as caught:
        authenticator.authenticate(headers)
    assert caught.value.code == "UNAUTHENTICATED"
    assert CANARY not in str(caught.value) + repr(caught.value)
    assert CANARY.encode() not in pickle.dumps(caught.value)


@given(value=st.one_of(st.text(), st.binary()))
def test_arbitrary_headers_are_refused_with_a_denied_error(
    authenticator: Authenticator, value: str | bytes
) -> None:
    prefix = b"Bearer " if isinstance(value, bytes) else "Basic "
    for header in (value, prefix + value):  # type: ignore[operator]
        with pytest.raises(DeniedError):
            authenticator.authenticate({"authorization": header})


def test_a_token_has_16_ki_characters_at_most(authenticator: Authenticator) -> None:
    for excess, why in ((0, "does not know the token"), (1, "has 16385 characters; the limit")):
        with pytest.raises(DeniedError, match=why):
            authenticator.authenticate({"authorization": "Bearer " + "x" * (16384 + excess)})


@pytest.mark.parametrize("character", "! é\n")
def test_base64_with_other_characters_is_malformed(
    authenticator: Authenticator, character: str
) -> None:
    text = basic("training", CANARY)
    with pytest.raises(DeniedError, match="Basic authorization header is malformed"):
        authenticator.authenticate({"authorization": f"{text[:12]}{character}{text[12:]}"})


def test_the_text_of_an_authenticator_names_its_sources(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    path.write_text(f"[[tokens]]\nname = 'x'\ntoken = '{CANARY}'\n")
    verifier: Any = object()
    assert repr(Authenticator(TokenFile(path), verifier)) == (
        "<Authenticator token file and JSON Web Tokens>"
    )


def test_a_token_works_as_a_password(authenticator: Authenticator) -> None:
    for name in ("training", ""):
        assert authenticator.exchange_password(name, CANARY) == CANARY
    for name, password in (("other", CANARY), ("training", CANARY + "x"), ("training", "\0")):
        with pytest.raises(DeniedError) as caught:
            authenticator.exchange_password(name, password)
        assert CANARY not in str(caught.value)


def test_an_authenticator_is_neither_shown_nor_pickled_with_its_tokens(
    authenticator: Authenticator,
) -> None:
    principal = authenticator.authenticate({"authorization": f"Bearer {CANARY}"})
    shown = [
        repr(authenticator),
        str(authenticator),
        repr(vars(authenticator)),
        repr(principal),
        str(principal),
    ]
    assert CANARY not in "".join(shown)
    assert repr(authenticator) == "<Authenticator token file>"
    assert pickle.loads(pickle.dumps(principal)) == principal
    assert CANARY.encode() not in pickle.dumps(principal)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(authenticator)


def test_an_authenticator_needs_a_source_of_tokens() -> None:
    with pytest.raises(ConfigError):
        Authenticator()


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
def test_grants_are_globs(glob: str, dataset: str, covered: bool) -> None:
    principal = Principal("x", Grants(read=(glob,)))
    assert principal.may(READ, dataset) == covered
    assert not principal.may(WRITE, dataset)
    assert Principal("x", Grants(write=(glob,))).may(WRITE, dataset) == covered


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (("*",), True),
        (("a", "*"), True),
        (("?",), False),
        (("[*]",), False),
        (("[!a-z]*",), False),
        (("**",), False),
        ((), False),
    ],
)
def test_only_the_glob_of_a_star_makes_an_operator(write: tuple[str, ...], expected: bool) -> None:
    assert Principal("x", Grants(write=write)).is_operator == expected
    assert not Principal("x", Grants(read=("*",))).is_operator


def test_a_missing_grant_is_denied_by_name() -> None:
    principal = Principal("training", Grants(("flights",), ("scores",)))
    principal.require(READ, "flights")
    principal.require(WRITE, "scores")
    for dataset, permission in (("scores", READ), ("flights", WRITE), ("other", READ)):
        with pytest.raises(
            DeniedError, match=f"'training' may not {permission} '{dataset}'"
        ) as caught:
            principal.require(permission, dataset)
        assert caught.value.code == "PERMISSION_DENIED"
    ANYONE.require(READ, "anything")
    ANYONE.require(WRITE, "anything")


def test_a_pathological_glob_is_matched_quickly() -> None:
    principal = Principal("x", Grants(("*a" * 30 + "b",)))
    assert not principal.may(READ, "a" * 5000)
