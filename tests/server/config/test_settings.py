"""Settings: their sources and precedence, their errors, and what is derived from them."""

from __future__ import annotations

import inspect
import pickle
import runpy
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from helpers.package import ROOT
from splitarrow.cli.serve import serve
from splitarrow.errors import ConfigError
from splitarrow.protocol.tags import FREE_DATA, TRACE, WANT_DATA
from splitarrow.protocol.uri import TCP_PORT
from splitarrow.server.addresses import control_uri
from splitarrow.server.config import (
    Configuration,
    Settings,
    declarations,
    load_settings,
)
from splitarrow.server.config.configuration import find_line
from splitarrow.server.config.declaration import Count
from splitarrow.server.config.settings import ServeArguments, listener_uri


def test_the_defaults_serve_this_host_only() -> None:
    settings = load_settings()
    assert settings.listen == (f"tcp://127.0.0.1:{TCP_PORT}", "shm://")
    assert settings.control is None
    with pytest.raises(ValidationError, match="frozen"):
        settings.control = "grpc://h"


def test_the_default_limits() -> None:
    shown = {
        one.name: one.default_text
        for one in declarations(Settings)
        if isinstance(one.default, (int, float)) and not one.is_flag
    }
    assert shown == {
        "workers": "1",
        "drain_seconds": "30",
        "poll_seconds": "10",
        "object_cache_bytes": "10GiB",
        "max_connections": "4096",
        "handshake_seconds": "10",
        "idle_seconds": "600",
        "stall_seconds": "600",
        "max_calls_per_address": "2048",
        "filter_seconds": "10",
        "filter_threads": "8",
        "parquet_bytes": "4GiB",
        "vortex_cache": "1GiB",
        "lease_seconds": "10",
        "stream_memory": "256MiB",
        "upload_rate": "1KiB",
        "jwt_leeway_seconds": "0",
        "ticket_seconds": "300",
    }


def test_limits_per_address_and_principal_are_half_of_all_rounded_up() -> None:
    settings = load_settings(max_connections=7)
    assert (settings.address_limit, settings.principal_limit) == (4, 4)
    given: dict[str, Any] = {"max_connections_per_address": 2, "max_streams_per_principal": 3}
    settings = load_settings(max_connections=7, **given)
    assert (settings.address_limit, settings.principal_limit) == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "requires"),
    [({}, False), ({"token_file": "t"}, True), ({"jwks": "k"}, True)],
)
def test_a_token_is_required_by_tokens(arguments: dict[str, Any], requires: bool) -> None:
    assert load_settings(**arguments).requires_token is requires


def test_arguments_win_over_variables_and_variables_win_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text('batch_rows = 1\nworkers = 1\ndrain_seconds = 1\nlisten = ["tcp://h:1"]\n')
    monkeypatch.setenv("SPLITARROW_WORKERS", "2")
    monkeypatch.setenv("SPLITARROW_DRAIN_SECONDS", "2")
    settings = load_settings(config, drain_seconds=3.0)
    assert (settings.batch_rows, settings.workers, settings.drain_seconds) == (1, 2, 3.0)
    assert settings.listen == ("tcp://h:1",)


def test_serve_declares_the_types_of_all_settings() -> None:
    fields = {name: field.annotation for name, field in Settings.model_fields.items()}
    for name in ("datasets", "listen", "control", "http"):  # parameters of their own
        del fields[name]
    hints = get_type_hints(ServeArguments)
    assert list(hints) == list(fields)
    for name, hint in hints.items():
        accepts = {type(None)} & set(get_args(hint))
        assert accepts == {type(None)} & set(get_args(fields[name])), name


def test_the_datasets_of_all_sources_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text("[datasets]\na = 'a.arrow'\nb = 'b.arrow'\n")
    monkeypatch.setenv("SPLITARROW_DATASETS", '{"b": "c.arrow"}')
    settings = load_settings(config, datasets={"d": "d.arrow"})
    assert settings.datasets == {"a": "a.arrow", "b": "c.arrow", "d": "d.arrow"}


def test_a_size_may_have_a_unit_in_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    service = "control = 'grpc://h'\nwritable = 'uploads'\n"
    config.write_text(service + "writable_bytes = '1GiB'\nobject_cache_bytes = 4096\n")
    monkeypatch.setenv("SPLITARROW_SHM_CACHE", "0")
    settings = load_settings(config, max_leased="2MB")
    assert (settings.writable_bytes, settings.object_cache_bytes) == (1 << 30, 4096)
    assert (settings.shm_cache, settings.max_leased) == (0, 2_000_000)


def test_every_source_has_a_form_for_advertised_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text(
        "control = 'grpc://h'\n[advertise]\ntcp = 'h:1'\n"
        "[advertise_for]\n'10.0.0.0/8' = { tcp = 'i:2' }\n'::/0' = ['j', 'grpc=k:3']\n"
    )
    settings = load_settings(config)
    assert settings.advertise == ("tcp=h:1",)
    assert settings.advertise_for == ("10.0.0.0/8=tcp=i:2", "::/0=j", "::/0=grpc=k:3")
    monkeypatch.setenv("SPLITARROW_ADVERTISE", "tcp=192.0.2.1:30016, grpc=[fd00::1]:30015")
    expected = ("tcp=192.0.2.1:30016", "grpc=[fd00::1]:30015")
    assert load_settings(config).advertise == expected
    assert load_settings(config, advertise=["x"]).advertise == ("x",)
    assert load_settings(config, advertise={"tcp": "x:1"}).advertise == ("tcp=x:1",)
    assert load_settings(config, advertise="x").advertise == ("x",)


def test_the_smallest_values_are_accepted() -> None:
    smallest: dict[str, Any] = {"workers": 1, "drain_seconds": 0, "poll_seconds": 1e-9}
    smallest |= {"parquet_bytes": 1, "vortex_cache": 0, "shm_users": (0,)}
    settings = load_settings(**smallest)
    assert {name: getattr(settings, name) for name in smallest} == smallest


@pytest.mark.parametrize(
    ("listen", "control", "setting"),
    [
        ("ucx://h", None, "max_leased"),
        ("shm://", None, "shm_users"),
        ("tcp+tls://h", None, "tls_cert"),
        ("tcp://h", "grpc+tls://h", "tls_cert"),
    ],
)
def test_a_setting_of_a_listener_has_an_effect(
    listen: str, control: str | None, setting: str
) -> None:
    values: dict[str, Any] = {"max_leased": 7, "shm_users": (7,), "tls_cert": Path("c")}
    given = {setting: values[setting]}
    settings = load_settings(listen=[listen], control=control, **given)
    assert getattr(settings, setting) == values[setting]


CONTROL = "control = 'grpc://h'\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\nworker = 2\n", "line 2: worker: no such setting; did you mean 'workers'\\?"),
        ("listen = [\n]\nlog_level = 'inf'\n", "line 3: log_level: .*; did you mean 'info'\\?"),
        ("datasets = { a = 'a' }\nwritable = 'w'\n", "line 2: writable: .* without control"),
        ("upload_bytes = 7\n", "upload_bytes: has no effect without writable"),
        ("tls_key = 'k'\n", "tls_key: has no effect without tls_cert"),
        ("tls_cert = 'c'\n", "tls_cert: has no effect without a tcp\\+tls:// listener or"),
        ("ticket_seconds = 7\n", "ticket_seconds: has no effect without token_file or jwks"),
        ("listen = ['tcp://h:1']\nshm_users = [7]\n", "line 2: shm_users: has no effect"),
        ("listen = ['tcp://h:1']\nmax_leased = 7\n", "line 2: max_leased: has no effect"),
        ("workers = 0\n", "workers:"),
        ("workers = 'two'\n", "workers:"),
        ("compression = 'gzip'\n", "compression:"),
        ("max_leased = 'a lot'\n", "max_leased: 'a lot' is not a size"),
        ("upload_bytes = '0'\n", "upload_bytes:"),
        ("drain_seconds = -1\n", "drain_seconds:"),
        ("poll_seconds = 0\n", "poll_seconds:"),
        ("vortex_cache = -1\n", "vortex_cache:"),
        ("tls = 'x'\n", "line 1: tls: no such setting; pass the files as 'tls_cert' and"),
        ("qwertz = 1\n", "qwertz: no such setting$"),
        ("listen = ['tcp://h:1']\nvortex_cache = 7\n", "line 2: vortex_cache: has no effect"),
        ("listen = ['ucx://h:1']\nshm_users = [7]\n", "shm_users: has no effect"),
        ("control = 'grpc'\n", "control: 'grpc' is not a URI; expected grpc://host:port"),
        ('datasets = { "a\\u0000b" = "x" }\n', "is not a dataset name"),
        ("listen = []\n", "listen: give at least one URI"),
        (CONTROL + "advertise = ['a', 'ftp=b']\n", "line 2: advertise: 'ftp' in 'ftp=b' is not"),
        (CONTROL + "advertise = 'tcp+tls=h'\n", "line 2: advertise: .* without a listener of the"),
        (CONTROL + "advertise_for = { 10 = 'h' }\n", "line 2: advertise_for: '10' is not a netwo"),
        (
            "proxy_protocol = ['::/0', 'lb']\n",
            "line 1: proxy_protocol: 'lb' is not a network",
        ),
        ("advertise = 'h'\n", "line 1: advertise: has no effect without control or http"),
        ("listen = ['tcp//x']\n", "listen"),
        ("listen = ['quic://x:1']\n", "quic"),
        ("listen = ['tcp://x:1?want_data=7']\n", "want_data=0x7"),
        ("listen = ['tcp://x:1?ticket=a']\n", "must not have a ticket"),
        ("[datasets]\n'' = 'x'\n", "datasets: '' is not a dataset name"),
        ("this is no TOML", "splitarrow.toml"),
    ],
)
def test_an_invalid_setting_is_named(tmp_path: Path, text: str, error: str) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=error):
        load_settings(config)


def test_a_missing_file_and_a_malformed_variable_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: the configuration file does not exist"):
        load_settings(tmp_path / "nowhere.toml")
    monkeypatch.setenv("SPLITARROW_DATASETS", "{")
    with pytest.raises(ConfigError, match="datasets"):
        load_settings()


def test_an_error_names_every_problem_and_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text("# the service\nadvertise = 'h'\n\n[datasets]\na = 7\n")
    monkeypatch.setenv("SPLITARROW_MAX_CONNECTIONS", "0")
    with pytest.raises(ConfigError) as raised:
        Configuration(config, {"batch_rows": 0}, uses_options=True).load()
    places = [part.split(": ")[0] for part in str(raised.value).split("; ")]
    assert set(places) == {f"{config}, line 5", "SPLITARROW_MAX_CONNECTIONS", "--batch-rows"}
    config.write_text("[datasets]\na = 'a.arrow'\n")
    monkeypatch.setenv("SPLITARROW_MAX_CONNECTIONS", "9")
    with pytest.raises(ConfigError, match=r"^--writable: has no effect without control$"):
        Configuration(config, {"writable": Path("w")}, uses_options=True).load()


def test_the_source_of_a_dataset_is_the_one_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text("[datasets]\na = 'a'\nb = 'b'\nc = 'c'\n")
    monkeypatch.setenv("SPLITARROW_DATASETS", '{"b": "b"}')
    configuration = Configuration(config, {"datasets": {"c": "c"}}, uses_options=True)
    located = {name: configuration.locate("datasets", name) for name in "abcd"}
    in_file = f"{config}, line 2: datasets.a"
    assert located == {
        "a": in_file,
        "b": "SPLITARROW_DATASETS",
        "c": "datasets.c",
        "d": "datasets.d",
    }
    assert configuration.locate("datasets") == "--datasets"


def test_a_misspelled_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITARROW_BATCH_ROW", "7")
    monkeypatch.setenv("SPLITARROW_QWERTZ", "7")
    # Kubernetes sets these for a service that is named splitarrow.
    monkeypatch.setenv("SPLITARROW_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("SPLITARROW_PORT_8815_TCP_ADDR", "10.0.0.1")
    with pytest.raises(ConfigError) as raised:
        load_settings()
    assert str(raised.value) == (
        "SPLITARROW_BATCH_ROW: no such variable; did you mean 'SPLITARROW_BATCH_ROWS'?; "
        "SPLITARROW_QWERTZ: no such variable; unset it"
    )


def test_variables_for_tls_clients_do_not_disturb_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPLITARROW_TLS_CERT", "client.pem")
    monkeypatch.setenv("SPLITARROW_TLS_CA", "ca.pem")
    assert load_settings().tls_cert == Path("client.pem")


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\nb = 2\n", ["b"], 2),
        ("# a = 0\n\na = [\n  1,\n]\n", ["a"], 3),
        ('s = """\na = 7\n"""\na = 8\n', ["a"], 4),
        ("a.b = 1\n", ["a", "b"], 1),
        ("[a]\nc = 1\n'b' = 2\n", ["a", "b"], 3),
        ("a = 1\n", ["c"], None),
        ("a = 1\n", ["a", "b"], None),
    ],
)
def test_the_line_of_a_value_is_found(text: str, path: list[str], line: int | None) -> None:
    assert find_line(text, path) == line


def test_settings_reach_worker_processes_unchanged(tmp_path: Path) -> None:
    config = tmp_path / "splitarrow.toml"
    config.write_text("batch_rows = 7\n")
    settings = load_settings(config, workers=2)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_every_setting_has_a_help_text_and_a_value_name() -> None:
    for declaration in declarations(Settings):
        help = declaration.help
        assert help.endswith("."), declaration.name
        assert help[0].isupper() or help[0] == "`", declaration.name
        named = declaration.is_flag or declaration.choices or declaration.metavar
        assert named, declaration.name


@pytest.mark.parametrize(
    ("name", "metavar", "default", "is_repeatable", "choices"),
    [
        ("workers", "N", "1", False, ()),
        ("drain_seconds", "SECONDS", "30", False, ()),
        ("ready_file", "FILE", None, False, ()),
        ("batch_rows", "ROWS", "unchanged", False, ()),
        ("shm_cache", "SIZE", "a quarter of this host's memory", False, ()),
        ("vortex_cache", "SIZE", "1GiB", False, ()),
        ("http_hosts", "NAME", "none", True, ()),
        ("shm_copy", "", None, False, ()),
        ("parquet_keys", "", "last", False, ("last", "keep")),
    ],
)
def test_help_follows_from_the_type_unless_it_is_declared(
    name: str, metavar: str, default: str | None, is_repeatable: bool, choices: tuple[str, ...]
) -> None:
    (found,) = (one for one in declarations(Settings) if one.name == name)
    assert (found.metavar, found.default_text) == (metavar, default)
    assert (found.is_repeatable, found.choices) == (is_repeatable, choices)
    assert found.flag == f"--{name.replace('_', '-')}"
    assert found.is_flag == (name == "shm_copy")


def test_every_setting_is_an_option_of_the_command_line() -> None:
    names = [one.name for one in declarations(Settings)]
    assert names == list(Settings.model_fields)
    assert set(inspect.signature(serve).parameters) == {*names, "config"}


def test_the_page_describes_every_setting() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "generated_parts.py"))
    page = hook["on_page_markdown"]((ROOT / "docs" / "settings.md").read_text())
    assert hook["on_page_markdown"]("another page") == "another page"
    assert "<!--" not in page
    for declaration in declarations(Settings):
        assert f"\n`{declaration.name}` " in page


def test_the_settings_of_a_group_are_declared_together() -> None:
    groups = [key for key, _ in groupby(one.setting.group for one in declarations(Settings))]
    assert len(groups) == len(set(groups))


def test_a_setting_without_a_declaration_is_refused() -> None:
    class Incomplete(BaseSettings):
        size: Count = 1

    with pytest.raises(TypeError, match="size is not declared"):
        list(declarations(Incomplete))


def test_a_listener_gets_its_tags() -> None:
    uri = listener_uri("tcp://h:1?stream=body")
    assert uri.want_data == WANT_DATA
    assert uri.free_data is None
    chosen = listener_uri("tcp://h:1?want_data=0xff00000000000")
    assert chosen.want_data == 0xFF00000000000
    assert chosen.trace is None
    assert listener_uri("tcp://h:1", traced=True).trace == TRACE
    assert listener_uri("shm://").free_data == FREE_DATA


def test_the_control_plane_has_a_default_port() -> None:
    assert control_uri(load_settings()) is None
    assert str(control_uri(load_settings(control="grpc://h"))) == "grpc://h:8815"
    assert str(control_uri(load_settings(control="grpc://h:0/"))) == "grpc://h:0"
