"""URIs of data streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import UriError, UsageError
from splitarrow.protocol.uri import DataUri, Streams

U64 = st.integers(0, (1 << 64) - 1)
hosts = st.sampled_from(["", "host", "a.example", "10.0.0.7", "::1", "fe80::1%eth0", "2001:db8::7"])
paths = st.just("") | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
).map(lambda text: "/" + text)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda key: key not in ("want_data", "free_data", "remote_handle", "stream", "ticket")
)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
uris = st.builds(
    DataUri,
    scheme=st.sampled_from(["tcp", "tcp+tls", "shm", "ucx", "inproc", "x-1.y"]),
    host=hosts,
    port=st.none() | st.integers(0, 65535),
    path=paths,
    want_data=st.none() | U64,
    free_data=st.none() | U64,
    remote_handle=st.none() | st.binary(max_size=40),
    stream=st.sampled_from(Streams),
    ticket=st.none() | st.binary(max_size=40),
    extra=st.lists(st.tuples(keys, values), max_size=3).map(tuple),
)


@given(uris)
def test_a_uri_round_trips_through_its_text(uri: DataUri) -> None:
    assert DataUri.parse(str(uri)) == uri
    assert str(DataUri.parse(str(uri))) == str(uri)


@given(uris)
def test_a_redacted_uri_contains_no_secrets(uri: DataUri) -> None:
    secret = replace(uri, ticket=b"sesame")
    shown = secret.redacted()
    assert "sesame" not in shown.removeprefix(uri.address)
    assert "ticket=…" in shown
    if uri.remote_handle is not None:
        assert "remote_handle=…" in shown
    assert shown.startswith(uri.address)


@given(
    st.text(max_size=60) | st.text(max_size=60).map(lambda text: f"tcp://h:1?want_data=1&{text}")
)
def test_any_text_is_a_uri_or_refused(text: str) -> None:
    try:
        uri = DataUri.parse(text)
    except UriError:
        return
    assert DataUri.parse(str(uri)) == uri


def test_a_uri_is_split_into_its_parts() -> None:
    uri = DataUri.parse(
        "TCP://Host:8816?want_data=0X10000000001&free_data=42&remote_handle=AQID"
        "&stream=body&ticket=a%20b%2Fc%00&color=red&color=blue&flag"
    )
    assert uri == DataUri(
        "tcp",
        "host",
        8816,
        want_data=0x100_0000_0001,
        free_data=42,
        remote_handle=b"\1\2\3",
        stream=Streams.BODY,
        ticket=b"a b/c\0",
        extra=(("color", "red"), ("color", "blue"), ("flag", "")),
    )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("shm:///run/my%20socket", "/run/my socket"),
        ("shm:///run/a%3Fb", "/run/a?b"),
        ("shm:///run/%ff", "/run/\udcff"),
        ("inproc:///name", "/name"),
    ],
)
def test_a_path_is_decoded(text: str, path: str) -> None:
    uri = DataUri.parse(text)
    assert uri.path == path
    assert DataUri.parse(str(uri)) == uri


@pytest.mark.parametrize("text", ["AQID", "AQID==", "_-8=", "%2F%2B8", "/+8", ""])
def test_either_alphabet_of_base64_is_read_padded_or_not(text: str) -> None:
    handle = DataUri.parse(f"shm:///s?remote_handle={text}").remote_handle
    assert handle in (b"\1\2\3", b"\xff\xef", b"\xff\xef", b"")


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("0x0", 0), ("0xFf", 255), ("18446744073709551615", (1 << 64) - 1)],
)
def test_numbers_are_decimal_or_hexadecimal(text: str, number: int) -> None:
    uri = DataUri.parse(f"tcp://h?want_data={text}&free_data={text}")
    assert (uri.want_data, uri.free_data) == (number, number)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a URI"),
        ("flights", "is not a URI"),
        ("tcp:host", "is not a URI"),
        ("://host", "is not a URI"),
        ("//host", "is not a URI"),
        ("1tcp://host", "scheme"),
        ("t cp://host", "scheme"),
        (" tcp://host", "scheme"),
        ("täp://host", "scheme"),
        ("tcp://host:port", "Port"),
        ("tcp://host:70000", "Port"),
        ("tcp://host:-1", "Port"),
        ("tcp://[::1", "IPv6"),
        ("tcp://[nonsense]:5", "malformed"),
        ("tcp://user@host", "user name"),
        ("tcp://user:secret@host", "user name"),
        ("tcp://user:secret@[::1", "user name"),
        ("tcp://host?want_data=1&ticket=a#b", "%23"),
        ("tcp://host\n?want_data=1", "control"),
        ("tcp://host?ticket=\udcff", "control"),
        ("tcp://host/%00", "begins with /"),
        ("tcp://host?want_data=", "want_data=''"),
        ("tcp://host?want_data", "want_data=''"),
        ("tcp://host?want_data=x", "want_data='x'"),
        ("tcp://host?want_data=0x", "want_data='0x'"),
        ("tcp://host?want_data=-1", "want_data='-1'"),
        ("tcp://host?want_data=+1", "want_data='\\+1'"),
        ("tcp://host?want_data=1_000", "want_data='1_000'"),
        ("tcp://host?want_data=1.5", "want_data='1.5'"),
        ("tcp://host?want_data=٣", "want_data='٣'"),
        ("tcp://host?want_data=" + "9" * 5000, "want_data"),
        ("tcp://host?want_data=18446744073709551616", "64 bits"),
        ("tcp://host?free_data=0x10000000000000000", "free_data.* 64 bits"),
        ("tcp://host?free_data=q", "free_data='q'"),
        ("tcp://host?want_data=1&want_data=1", "want_data is given twice"),
        ("tcp://host?ticket=a&ticket=b", "ticket is given twice"),
        ("tcp://host?stream=both", "stream='both'"),
        ("tcp://host?stream=", "stream=''"),
        ("tcp://host?stream=Body", "stream='Body'"),
        ("tcp://host?remote_handle=A", "base64"),
        ("tcp://host?remote_handle=A%20BC", "base64"),
        ("tcp://host?remote_handle=A=BC", "base64"),
        ("tcp://host?remote_handle=AQID%20%20%20%20", "base64"),
    ],
)
def test_a_malformed_uri_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UriError, match=why) as caught:
        DataUri.parse(text)
    assert isinstance(caught.value, UsageError)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "tcp://host?ticket=sesame&want_data=x",
        "tcp://host:port?want_data=1&ticket=sesame",
        "tcp://host?want_data=1&ticket=sesame#x",
        "host?ticket=sesame",
    ],
)
def test_an_error_never_shows_the_ticket(text: str) -> None:
    with pytest.raises(UriError) as caught:
        DataUri.parse(text)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"scheme": ""},
        {"scheme": "TCP"},
        {"scheme": "t/p"},
        {"port": -1},
        {"port": 65536},
        {"want_data": -1},
        {"want_data": 1 << 64},
        {"free_data": 1 << 64},
        {"path": "relative"},
        {"path": "/nul\0"},
    ],
    ids=str,
)
def test_a_uri_is_valid_once_built(fields: dict[str, object]) -> None:
    with pytest.raises(UriError):
        DataUri(**{"scheme": "tcp", **fields})  # pyright: ignore[reportArgumentType]


def test_a_changed_uri_keeps_its_other_parts() -> None:
    uri = DataUri.parse("tcp://h:1?want_data=5&ticket=a")
    assert str(uri.replace(port=2, ticket=b"b")) == "tcp://h:2?want_data=0x5&ticket=b"
    with pytest.raises(UriError, match="port 65536 is not between"):
        uri.replace(port=65536)


def test_a_reader_needs_want_data() -> None:
    assert DataUri.parse("tcp://h?want_data=5").require_want_data() == 5
    with pytest.raises(UriError, match="has no want_data"):
        DataUri.parse("tcp://h?ticket=sesame").require_want_data()


def test_each_kind_of_stream_carries_its_halves() -> None:
    assert [(kind.carries_metadata, kind.carries_bodies) for kind in Streams] == [
        (True, True),
        (True, False),
        (False, True),
    ]


def test_a_parameter_may_be_given_once() -> None:
    uri = DataUri.parse("tcp://host:1?want_data=1&lanes=2&lanes=3&window=4")
    assert (uri.parameter("window"), uri.parameter("other")) == ("4", None)
    with pytest.raises(UriError, match="lanes is given twice"):
        uri.parameter("lanes")
