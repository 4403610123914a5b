"""Settings: where they come from, which wins, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow.errors import ConfigError
from splitarrow.server.config import WANT_DATA, listener_uri, load_settings
from splitarrow.transport.tcp import DEFAULT_PORT


def test_defaults_serve_the_loopback() -> None:
    settings = load_settings()
    assert settings.listen == (f"tcp://127.0.0.1:{DEFAULT_PORT}", "shm://")
    assert settings.control is None
    assert settings.workers == 1


def test_arguments_win_over_variables_and_those_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text('batch_rows = 1\nworkers = 1\ndrain_seconds = 1\nlisten = ["tcp://h:1"]\n')
    monkeypatch.setenv("SPLITARROW_WORKERS", "2")
    monkeypatch.setenv("SPLITARROW_DRAIN_SECONDS", "2")
    monkeypatch.setenv("SPLITARROW_DATASETS", '{"a": "/a.arrow"}')
    settings = load_settings(config, drain_seconds=3.0)
    assert (settings.batch_rows, settings.workers, settings.drain_seconds) == (1, 2, 3.0)
    assert settings.datasets == {"a": "/a.arrow"}
    assert settings.listen == ("tcp://h:1",)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("worker = 2\n", "worker:"),
        ("workers = 0\n", "workers:"),
        ("workers = 'two'\n", "workers:"),
        ("compression = 'gzip'\n", "compression:"),
        ("listen = []\n", "listen:"),
        ("listen = ['tcp//x']\n", "listen"),
        ("listen = ['quic://x:1']\n", "quic"),
        ("listen = ['tcp://x:1?want_data=7']\n", "want_data=0x7"),
        ("listen = ['tcp://x:1?ticket=a']\n", "ticket"),
        ("[datasets]\n'' = 'x'\n", "datasets"),
        ("this is no TOML", "splitarrow.toml"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, named: str) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load_settings(config)


def test_missing_file_and_malformed_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file.*nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml")
    monkeypatch.setenv("SPLITARROW_DATASETS", "{")
    with pytest.raises(ConfigError, match="datasets"):
        load_settings()


def test_a_listener_gets_its_tags() -> None:
    uri = listener_uri("tcp://h:1?stream=body")
    assert uri.want_data == WANT_DATA
    assert uri.free_data is None
    chosen = listener_uri("tcp://h:1?want_data=0xff00000000000")
    assert chosen.want_data == 0xFF00000000000
