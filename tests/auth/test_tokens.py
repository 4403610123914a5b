"""The token file: names, digests and grants, read again when it changes."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from splitarrow.errors import ConfigError
from splitarrow.server.auth.principal import Grants, Principal
from splitarrow.server.auth.tokens import TokenFile, read_tokens

from .conftest import Clock

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


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "tokens.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    return path


def test_tokens_stand_for_principals(tmp_path: Path) -> None:
    tokens = TokenFile(written(tmp_path, GOOD))
    assert tokens.principal(CANARY) == Principal("training", Grants(("flights", "trips/*"), ()))
    assert tokens.principal("another-secret-token") == Principal(
        "loader", Grants(("*",), ("scores",))
    )
    assert tokens.principal("the-next-token-of-training") == Principal("training")
    for wrong in ("", CANARY[:-1], CANARY + "x", CANARY.upper(), "ünïcode"):
        assert tokens.principal(wrong) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "one or more, and nothing else"),
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
        ("[[tokens]]\nname = 'a'", "'a'.: it needs a token, or the sha256"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nsha256='{'0' * 64}'", "or the sha256"),
        ("[[tokens]]\nname='a'\nsha256='12'", "64 hexadecimal"),
        ("[[tokens]]\nname='a'\nsha256=12", "64 hexadecimal"),
        ("[[tokens]]\nname='a'\ntoken='short'", "16 characters or more"),
        ("[[tokens]]\nname='a'\ntoken='with a space in it'", "visible ASCII"),
        ("[[tokens]]\nname='a'\ntoken=1234567890123456", "visible ASCII"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\ndatasets='*'", "datasets is a list"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nwrite=[1]", "write is a list"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\nwrite=['']", "write is a list"),
        (f"[[tokens]]\nname='a'\ntoken='{CANARY}'\n" * 2, "two entries have the same token"),
        ("x=" + "[" * 20_000, "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, content: str | bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_tokens(written(tmp_path, content))
    seen: BaseException | None = caught.value
    while seen is not None:  # nor does what it was made of quote the file
        assert CANARY not in str(seen) + repr(seen.__dict__)
        seen = seen.__cause__ or seen.__context__


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the token file .*none: No such file"):
        TokenFile(tmp_path / "none")


def test_a_file_of_plain_tokens_for_everybody_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, GOOD)
    path.chmod(0o644)
    read_tokens(path)
    assert [record.getMessage() for record in caplog.records] == ["everybody may read the tokens"]
    caplog.clear()
    path.write_text(f"[[tokens]]\nname = 'a'\nsha256 = '{'0' * 64}'")
    read_tokens(path)
    assert not caplog.records


def test_changes_are_taken_over(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, GOOD)
    tokens = TokenFile(path, clock=clock)
    path.write_text(GOOD.replace(CANARY, "its-replacement-token"))
    assert tokens.principal(CANARY) is not None
    clock.now += 1
    assert tokens.principal(CANARY) is None
    assert tokens.principal("its-replacement-token") is not None

    path.write_text(GOOD + "[[tokens]]\nname = 'half")
    clock.now += 1
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            clock.now += 1
            assert tokens.principal("its-replacement-token") is not None
    told = [r for r in caplog.records if "the old tokens stay" in r.getMessage()]
    assert len(told) == 1
    assert CANARY not in str([record.__dict__ for record in caplog.records])

    path.unlink()
    clock.now += 1
    assert tokens.principal("its-replacement-token") is not None
    replacement = tmp_path / "new"
    replacement.write_text(GOOD)
    replacement.rename(path)
    clock.now += 1
    assert tokens.principal(CANARY) is not None
    assert CANARY not in repr(tokens) + repr(vars(tokens)) + repr(vars(tokens._watched))
