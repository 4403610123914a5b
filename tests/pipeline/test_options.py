"""The options of the data source."""

from __future__ import annotations

import pytest

from splitarrow import errors
from splitarrow.client.tokens import FileToken, FixedToken
from splitarrow.pipeline.options import SparkOptions
from splitarrow.transport.tls_options import TlsOptions

NAMES = (
    *("limit", "seconds", "size", "columns", "pushdown"),
    *("token", "token_file", "tls_ca", "tls_key"),
)


def options(**values: str) -> SparkOptions:
    return SparkOptions(values, NAMES)


def test_names_are_case_insensitive_and_empty_values_are_not_set() -> None:
    assert options(LIMIT="3").count("limit") == 3
    assert options(limit="").count("limit") is None


def test_an_unknown_option_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(errors.UsageError, match="no option 'limits'; did you mean 'limit'"):
        options(limits="3")
    with pytest.raises(errors.UsageError, match="no option 'xyz'; use limit, seconds"):
        options(xyz="3")


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        ("count", "limit", "1.5", "must be an integer"),
        ("count", "limit", "0", "must be at least 1"),
        ("seconds", "seconds", "-1", "must be a positive number of seconds"),
        ("seconds", "seconds", "inf", "must be a positive number of seconds"),
        ("nbytes", "size", "0", "must be at least 1 byte"),
        ("names", "columns", ",", "must contain at least one name"),
        ("names", "columns", "[1]", "must be a JSON array of strings"),
    ],
)
def test_a_wrong_value_is_an_error(method: str, name: str, value: str, message: str) -> None:
    with pytest.raises(errors.UsageError, match=f"option '{name}' is .*; it {message}"):
        getattr(options(**{name: value}), method)(name)


def test_flags_and_choices_accept_only_their_words() -> None:
    assert options(pushdown="YES").flag("pushdown", False)
    assert options().flag("pushdown", True)
    with pytest.raises(errors.UsageError, match="'maybe'; it must be true or false"):
        options(pushdown="maybe").flag("pushdown", False)
    with pytest.raises(errors.UsageError, match="'maybe'; it must be one of on, off"):
        options(pushdown="maybe").choice("pushdown", ("on", "off"), "on")


def test_a_required_option_shows_an_example() -> None:
    with pytest.raises(errors.UsageError, match=r"set \.option\('token', 'secret'\)"):
        options().require("token", "secret")


def test_the_token_defaults_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITARROW_TOKEN", "from-environment")
    monkeypatch.setenv("SPLITARROW_CLIENT_TOKEN_FILE", "environment-file")
    assert options().token() == FixedToken("from-environment")
    assert options(token="from-option").token() == FixedToken("from-option")
    assert options(token_file="option-file").token() == FileToken("option-file")
    monkeypatch.delenv("SPLITARROW_TOKEN")
    assert options().token() == FileToken("environment-file")
    with pytest.raises(errors.UsageError, match="exclude each other"):
        options(token="a", token_file="b").token()


def test_tls_options_without_a_certificate_have_no_key() -> None:
    assert options().tls() is None
    assert options(tls_ca="ca.pem", tls_key="key.pem").tls() == TlsOptions("ca.pem")


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("64KiB", 1 << 16), ("1MB", 10**6), (" 2 k ", 2048), ("4096", 4096)],
)
def test_sizes_have_the_units_of_all_settings(text: str, size: int) -> None:
    assert options(size=text).nbytes("size") == size


def test_a_size_of_another_form_is_an_error() -> None:
    with pytest.raises(errors.UsageError, match="option 'size': '5 parsecs' is not a size: give"):
        options(size="5 parsecs").nbytes("size")


def test_names_are_separated_by_commas_or_are_a_json_array() -> None:
    assert options(columns='["a, b", "c"]').names("columns") == ["a, b", "c"]
    assert options(columns="a, b,").names("columns") == ["a", "b"]


def test_an_argument_has_the_type_of_its_default() -> None:
    defaults = {"columns": "x", "seconds": 1.5, "size": 1 << 20}
    assert options().arguments(defaults) == defaults
    given = options(columns="y", seconds="2", size="1MB").arguments(defaults)
    assert given == {"columns": "y", "seconds": 2.0, "size": 10**6}
