"""The token file: names, digests and grants, and changes of the file."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from helpers.clock import Clock
from splitarrow.errors import ConfigError
from splitarrow.server.auth import token_file
from splitarrow.server.auth.principal import Grants, Principal
from splitarrow.server.auth.token_file import TokenFile, read_tokens

CANARY = "canary-0123456789-secret"
GOOD = f"""
[[tokens]]
name = "training"
token = "{CANARY}"
datasets = ["flights", "trips/*"]

[[tokens]]
name = "loader"
sha256 = "{hashlib.sha256(b"another-secret-token").hexdigest()}"
datasets = ["*"]
write = ["scores"]

[[tokens]]
name = "training"
token = "the-next-token-of-training"
"""


def write_tokens(folder: Path, content: str | bytes) -> Path:
    path = folder / "tokens.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    return path


def test_each_token_has_one_principal(tmp_path: Path) -> None:
    tokens = TokenFile(write_tokens(tmp_path, GOOD))
    assert tokens.find_principal(CANARY) == Principal(
        "training", Grants(("flights", "trips/*"), ())
    )
    assert tokens.find_principal("another-secret-token") == Principal(
        "loader", Grants(("*",), ("scores",))
    )
    assert tokens.find_principal("the-next-token-of-training") == Principal("training")
    for wrong in ("", CANARY[:-1], CANARY + "x", CANARY.upper(), "ünïcode"):
        assert tokens.find_principal(wrong) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "one or more .* and nothing else"),
        ("tokens = []", "one or more"),
        ("tokens = 7", "one or more"),
        ("[[tokens]]\nname='a'\ntoken='0123456789abcdef'\n[other]\n", "nothing else"),
        (f"[[tokens]]\nname = {CANARY}", "is not TOML .at line 2"),
        (f"[[tokens]]\nname = '{CANARY}", "is not TOML$"),
        (b"\xff\xfe", "is not UTF-8"),
        ("[[tokens]]\ntoken = '0123456789abcdef'", "token 1: a token needs a name"),
        ("[[tokens]]\nname = 7\ntoken = '0123456789abcdef'", "needs a name"),
        ("[[tokens]]\nname = 'a\\tb'\nsha256 = 'x'", "hexadecimal"),
        ('[[tokens]]\nname = "a\\tb"\nsha256 = "x"', "needs a name"),
        (f"[[tokens]]\nname='a'\n{CANARY} = 1", "the fields of a token are"),
        ("[[tokens]]\nname='a'\ndataset = ['*']", "did you mean 'datasets'"),
        ("[[tokens]]\nname = 'a'", "'a'.: give either token or sha256"),
        (
            f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nsha256='{'0' * 64}'",
            "give either token or sha256",
        ),
        (
            f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nsha256='{'0' * 64}'\ndatasets=[]\nwrite=[]",
            "give either token or sha256",
        ),
        ("[[tokens]]\nname='a'\nsha256='12'", "must have 64 hexadecimal"),
        ("[[tokens]]\nname='a'\nsha256=12", "must have 64 hexadecimal"),
        ("[[tokens]]\nname='a'\ntoken='short'", "needs at least 16"),
        ("[[tokens]]\nname='a'\ntoken='with a space in it'", "printable ASCII"),
        ("[[tokens]]\nname='a'\ntoken=1234567890123456", "printable ASCII"),
        ('[[tokens]]\nname="a"\ntoken="1234567890\\n123456"', "has a newline in the middle"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\ndatasets='*'", "datasets must be a list"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nwrite=[1]", "write must be a list"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nwrite=['']", "write must be a list"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\n" * 2, "two entries have the same token"),
        ("x=" + "[" * 20_000, "is not TOML"),
    ],
)
def test_a_malformed_file_is_refused_without_quoting_it(
    tmp_path: Path, content: str | bytes, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_tokens(write_tokens(tmp_path, content))
    seen: BaseException | None = caught.value
    while seen is not None:  # its causes do not quote the file either
        assert CANARY not in str(seen) + repr(seen.__dict__)
        seen = seen.__cause__ or seen.__context__


def test_a_token_has_16_characters_or_more(tmp_path: Path) -> None:
    entry = "[[tokens]]\nname = 'a'\ntoken = '{}'\n"
    with pytest.raises(ConfigError, match="has 15 characters; it needs at least 16"):
        read_tokens(write_tokens(tmp_path, entry.format("x" * 15)))
    assert len(read_tokens(write_tokens(tmp_path, entry.format("x" * 16)))) == 1


def test_a_file_of_tokens_has_16_mib_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tokens(tmp_path, GOOD)
    with path.open("r+b") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(ConfigError, match="has 16777217 bytes; a token file has at most 16777216"):
        read_tokens(path)
    write_tokens(tmp_path, GOOD)
    for limit, is_refused in ((len(GOOD), False), (len(GOOD) - 1, True)):
        monkeypatch.setattr(token_file, "_MAX_FILE_BYTES", limit)
        if is_refused:
            with pytest.raises(ConfigError, match=f"a token file has at most {limit}$"):
                read_tokens(path)
        else:
            assert len(read_tokens(path)) == 3


def test_the_number_of_an_invalid_token_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokens\.toml, token 4: a token needs a name"):
        read_tokens(write_tokens(tmp_path, GOOD + "[[tokens]]\ntoken = '0123456789abcdef'"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the token file .*none: No such file"):
        TokenFile(tmp_path / "none")


def test_a_world_readable_file_of_plain_tokens_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tokens(tmp_path, GOOD)
    path.chmod(0o644)
    read_tokens(path)
    assert [record.getMessage() for record in caplog.records] == ["every user can read the tokens"]
    caplog.clear()
    path.write_text(f"[[tokens]]\nname = 'a'\nsha256 = '{'0' * 64}'")
    read_tokens(path)
    assert not caplog.records


def test_a_changed_file_replaces_the_tokens_if_it_is_valid(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tokens(tmp_path, GOOD)
    tokens = TokenFile(path, clock=clock)
    path.write_text(GOOD.replace(CANARY, "its-replacement-token"))
    assert tokens.find_principal(CANARY) is not None
    clock.now += 1
    assert tokens.find_principal(CANARY) is None
    assert tokens.find_principal("its-replacement-token") is not None

    path.write_text(GOOD + "[[tokens]]\nname = 'half")
    clock.now += 1
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            clock.now += 1
            assert tokens.find_principal("its-replacement-token") is not None
    errors = [r for r in caplog.records if "keeping the old tokens" in r.getMessage()]
    assert len(errors) == 1
    assert CANARY not in str([record.__dict__ for record in caplog.records])

    path.unlink()
    clock.now += 1
    assert tokens.find_principal("its-replacement-token") is not None
    replacement = tmp_path / "new"
    replacement.write_text(GOOD)
    replacement.rename(path)
    clock.now += 1
    assert tokens.find_principal(CANARY) is not None
    assert CANARY not in repr(tokens) + repr(vars(tokens)) + repr(vars(tokens._file))
