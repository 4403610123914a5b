"""The keys that sign tickets, and their file."""

from __future__ import annotations

import base64
import logging
import pickle
import secrets
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any

import pytest

from helpers.clock import Clock
from splitarrow.errors import ConfigError
from splitarrow.server.auth.tickets import TicketKeys, read_keys

FIRST, SECOND = (secrets.token_bytes(32) for _ in range(2))


def write_keys(folder: Path, content: bytes) -> Path:
    path = folder / "keys"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_binary_file_is_one_key(tmp_path: Path) -> None:
    raw = bytes(range(200, 256)) + b"\n"
    assert read_keys(write_keys(tmp_path, raw)) == (raw,)


@pytest.mark.parametrize("byte", [b"\x00", b"\x1f", b"\x7f", b"\xff"])
def test_a_byte_that_no_text_has_makes_a_file_one_key(tmp_path: Path, byte: bytes) -> None:
    raw = bytes(range(32, 127)) + b"\t\r" + byte
    assert read_keys(write_keys(tmp_path, raw)) == (raw,)


@pytest.mark.parametrize("characters", [" ", "*", "!", " " * 4, "*" * 4])
def test_a_key_with_a_character_of_no_alphabet_is_refused(tmp_path: Path, characters: str) -> None:
    key = base64.b64encode(FIRST).decode()
    text = f"{key[:20]}{characters}{key[20:]}"
    with pytest.raises(ConfigError, match="hex or base64"):
        read_keys(write_keys(tmp_path, text.encode()))


@pytest.mark.parametrize(("distinct", "is_random"), [(7, False), (8, True)])
def test_a_random_key_has_eight_distinct_bytes_or_more(distinct: int, is_random: bool) -> None:
    key = bytes(number % distinct for number in range(32))
    if is_random:
        assert TicketKeys([key]).current() == (key,)
    else:
        with pytest.raises(ConfigError, match="is not random; make one with: openssl"):
            TicketKeys([key])


def test_a_file_of_keys_has_64_kib_at_most(tmp_path: Path) -> None:
    text = f"{FIRST.hex()}\n".encode()
    assert read_keys(write_keys(tmp_path, text.ljust(64 << 10))) == (FIRST,)
    with pytest.raises(ConfigError, match="has 65537 bytes; a file of ticket keys has at most"):
        read_keys(write_keys(tmp_path, text.ljust((64 << 10) + 1)))


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    path = write_keys(tmp_path, f"# keys\n{FIRST.hex()}\n\nnothing?\n".encode())
    with pytest.raises(ConfigError, match=r"keys, line 4: a ticket key must be hex or base64"):
        read_keys(path)
    path = write_keys(tmp_path, f"{FIRST.hex()}\n{SECOND.hex()[:62]}".encode())
    with pytest.raises(ConfigError, match=r"keys, line 2: the ticket key has 31 bytes"):
        read_keys(path)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_each_line_of_a_text_file_is_a_key(tmp_path: Path, ending: str) -> None:
    lines = [
        "# the current key",
        FIRST.hex(),
        "",
        base64.b64encode(SECOND).decode(),
        base64.urlsafe_b64encode(FIRST).decode().rstrip("="),
    ]
    path = write_keys(tmp_path, ("\n".join(lines) + ending).encode())
    assert read_keys(path) == (FIRST, SECOND, FIRST)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "keys: the ticket key has bytes|holds no ticket key"),
        (b"# nothing\n", "holds no ticket key"),
        (b"correct horse battery staple, and some more words\n", "line 1: .* hex or base64"),
        (b"ab" * 31, "line 1: .* has 31 bytes"),
        (b"00" * 32, "line 1: the ticket key is not random"),
        (b"\xff" * 31, "has 31 bytes"),
        (b"\xff" * 32, "not random"),
        (b"\xff" * (65 << 10), "a file of ticket keys has at most"),
    ],
)
def test_an_invalid_key_is_refused_without_quoting_it(
    tmp_path: Path, content: bytes, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        read_keys(write_keys(tmp_path, content))
    assert "horse" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the ticket keys in .*none"):
        TicketKeys(path=tmp_path / "none")


def test_a_world_readable_file_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_keys(tmp_path, FIRST.hex().encode())
    read_keys(path)
    assert not caplog.records
    path.chmod(0o644)
    assert read_keys(path) == (FIRST,)
    assert [record.getMessage() for record in caplog.records] == [
        "every user can read the ticket keys"
    ]


def test_a_changed_file_replaces_the_keys_if_it_is_valid(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_keys(tmp_path, FIRST.hex().encode())
    keys = TicketKeys(path=path, clock=clock)
    write_keys(tmp_path, f"{SECOND.hex()}\n{FIRST.hex()}".encode())
    assert keys.current() == (FIRST,)
    clock.now += 1
    assert keys.current() == (SECOND, FIRST)
    write_keys(tmp_path, b"broken")
    clock.now += 1
    with caplog.at_level(logging.ERROR):
        assert keys.current() == (SECOND, FIRST)
    assert "keeping the old ones" in caplog.text
    assert "broken" not in str([record.__dict__ for record in caplog.records])


def test_a_worker_process_gets_the_keys_or_their_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(SECOND.hex())
    path.chmod(0o600)
    for keys, expected in ((TicketKeys([FIRST]), FIRST), (TicketKeys(path=path), SECOND)):
        popen: Any = object()
        set_spawning_popen(popen)
        try:
            data = pickle.dumps(keys)
        finally:
            set_spawning_popen(None)
        copy = pickle.loads(data)
        assert copy.current() == (expected,)
        assert repr(copy) == repr(keys)


def test_keys_are_neither_shown_nor_pickled() -> None:
    keys = TicketKeys([FIRST])
    assert repr(keys) == "<TicketKeys of this process>"
    with pytest.raises(RuntimeError):
        pickle.dumps(keys)
