"""The keys that tickets are signed with, and the file they are in."""

from __future__ import annotations

import base64
import logging
import pickle
import secrets
from pathlib import Path

import pytest

from splitarrow.errors import ConfigError
from splitarrow.server.auth.keys import TicketKeys, read_keys

from .conftest import Clock

FIRST, SECOND = (secrets.token_bytes(32) for _ in range(2))


def written(folder: Path, content: bytes) -> Path:
    path = folder / "keys"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_raw_bytes_are_one_key(tmp_path: Path) -> None:
    raw = bytes(range(200, 256)) + b"\n"
    assert read_keys(written(tmp_path, raw)) == (raw,)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_lines_are_keys(tmp_path: Path, ending: str) -> None:
    lines = [
        "# the key of today",
        FIRST.hex(),
        "",
        base64.b64encode(SECOND).decode(),
        base64.urlsafe_b64encode(FIRST).decode().rstrip("="),
    ]
    path = written(tmp_path, ("\n".join(lines) + ending).encode())
    assert read_keys(path) == (FIRST, SECOND, FIRST)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "keys: a ticket key has 32 bytes|holds no ticket key"),
        (b"# nothing\n", "holds no ticket key"),
        (b"correct horse battery staple, and some more words\n", "line 1: .* hex or base64"),
        (b"ab" * 31, "line 1: .* this one has 31"),
        (b"00" * 32, "line 1: this key is not random"),
        (b"\xff" * 31, "this one has 31"),
        (b"\xff" * 32, "not random"),
        (b"\xff" * (65 << 10), "that is no file of ticket keys"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_keys(written(tmp_path, content))
    assert "horse" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the ticket keys in .*none"):
        TicketKeys(path=tmp_path / "none")


def test_a_file_for_everybody_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, FIRST.hex().encode())
    read_keys(path)
    assert not caplog.records
    path.chmod(0o644)
    assert read_keys(path) == (FIRST,)
    assert [record.getMessage() for record in caplog.records] == [
        "everybody may read the ticket keys"
    ]


def test_changed_keys_are_taken_over(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, FIRST.hex().encode())
    keys = TicketKeys(path=path, clock=clock)
    written(tmp_path, f"{SECOND.hex()}\n{FIRST.hex()}".encode())
    assert keys.current() == (FIRST,)
    clock.now += 1
    assert keys.current() == (SECOND, FIRST)
    written(tmp_path, b"broken")
    clock.now += 1
    with caplog.at_level(logging.ERROR):
        assert keys.current() == (SECOND, FIRST)
    assert "the old ones stay" in caplog.text
    assert "broken" not in str([record.__dict__ for record in caplog.records])


def test_keys_do_not_show() -> None:
    keys = TicketKeys([FIRST])
    assert repr(keys) == "<TicketKeys of this process>"
    with pytest.raises(RuntimeError):
        pickle.dumps(keys)
