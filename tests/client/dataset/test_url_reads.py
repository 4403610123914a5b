"""Reads over HTTP from a daemon return what reads over TCP return, also through proxies."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from helpers.arrow_data import make_arrays_of_all_types, make_batches
from helpers.http_proxy import http_proxy
from helpers.pki import Pki
from helpers.proxy import proxy
from splitarrow.client.dataset import endpoints
from splitarrow.errors import (
    DeniedError,
    InvalidRequestError,
    NotFoundError,
    RemoteError,
    SplitArrowError,
    TransportError,
    UriError,
)

TOKEN = "secret-of-a-reader-0123456789"
ROWS = 3000
MIXED = pa.table(
    {
        "n": pa.array(range(ROWS), pa.int32()),
        "s": pa.array([f"text {number % 97}" for number in range(ROWS)]),
        "d": pa.array([f"{number % 5}" for number in range(ROWS)]).dictionary_encode(),
        "st": pa.array([{"x": number / 2, "y": [number]} for number in range(ROWS)]),
    }
)
BATCHED = pa.Table.from_batches(MIXED.to_batches(max_chunksize=500))
SELECTIONS: dict[str, Mapping[str, Any]] = {
    "everything": {},
    "columns": {"columns": ["s", "n"]},
    "field": {"columns": "st.x"},
    "sql": {"filter": "n >= 700 and s <> 'text 3'", "columns": ["d"]},
    "expression": {"filter": pc.field("n") > 2990},
    "tuples": {"filter": [("n", "<", 20), ("d", "=", "3")]},
    "nothing": {"filter": "n < 0"},
    "limit": {"limit": 501},
    "no rows": {"limit": 0},
    "batches": {"batches": (1, 3)},
    "ranges": {"batches": [(0, 1), (3, 5)], "limit": 700},
    "rows": {"rows": (123, 1777), "filter": "n > 500"},
    "batch_rows": {"batch_rows": 77, "limit": 400},
}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", params=["http", "http, token", "https", "https, token"])
def served(
    request: pytest.FixtureRequest, pki: Pki, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[splitarrow.Server, dict[str, Any]]]:
    """A server, and the arguments of a read over HTTP."""
    scheme, _, token = request.param.partition(", ")
    settings: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    if token:
        tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
        tokens.write_text(f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ndatasets = ["mixed"]\n')
        settings["token_file"] = tokens
        arguments["token"] = TOKEN
    if scheme == "https":
        settings["tls_cert"] = pki.path("server")
        arguments["tls"] = pki.make_client_options()
    with splitarrow.serve(
        {"mixed": BATCHED, "hidden": MIXED},
        listen=["tcp://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
        http=f"{scheme}://127.0.0.1:0",
        **settings,
    ) as server:
        yield server, arguments


def url(server: splitarrow.Server, name: str = "mixed") -> str:
    return f"{server.http_uri}/{name}"


@pytest.mark.parametrize(
    ("selection", "compression"),
    [*zip(SELECTIONS.values(), cycle((None, "lz4", "zstd"))), ({}, "lz4"), ({}, "zstd")],
    ids=[*SELECTIONS, "lz4", "zstd"],
)
def test_a_read_returns_the_same_as_over_tcp(
    served: tuple[splitarrow.Server, dict[str, Any]],
    selection: dict[str, Any],
    compression: str | None,
) -> None:
    server, arguments = served
    read: Any = {**selection, "compression": compression}
    with splitarrow.connect(server.control_uri or "", arguments.get("token")) as client:
        expected = list(client.read("mixed", transport="tcp", **read))
    with splitarrow.open(url(server), **arguments, **read) as stream:
        assert stream.transport == (server.http_uri or "").partition(":")[0]
        batches = list(stream)
        assert stream.is_exhausted
        assert stream.rows_received == sum(batch.num_rows for batch in expected)
    assert pa.Table.from_batches(batches, stream.schema).equals(
        pa.Table.from_batches(expected, stream.schema), check_metadata=True
    )
    if "batch_rows" in selection:
        assert max(batch.num_rows for batch in batches) <= 77


def test_rights_and_errors_are_those_of_the_server(
    served: tuple[splitarrow.Server, dict[str, Any]],
) -> None:
    server, arguments = served
    with pytest.raises(InvalidRequestError, match="no column 'x'"):
        splitarrow.open(url(server), columns="x", **arguments)
    with pytest.raises(RemoteError) as caught:
        splitarrow.open(url(server), version="other", **arguments)
    assert caught.value.code == "FAILED_PRECONDITION"
    if "token" in arguments:
        with pytest.raises(DeniedError, match="may not read 'hidden'"):
            splitarrow.open(url(server, "hidden"), **arguments)
        with pytest.raises(DeniedError, match="pass a token"):
            splitarrow.open(url(server), tls=arguments.get("tls"))
        other: Any = {"token": "another-token-0123456789"}
        with pytest.raises(DeniedError, match="check the token"):
            splitarrow.open(url(server), **{**arguments, **other})
    else:
        with pytest.raises(NotFoundError, match="no dataset 'mixd'"):
            splitarrow.open(url(server, "mixd"), **arguments)


def test_a_read_passes_a_proxy(
    served: tuple[splitarrow.Server, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, arguments = served
    scheme = (server.http_uri or "").partition(":")[0]
    with http_proxy("user:pass") as through:
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", through.uri)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with splitarrow.open(url(server), filter="n > 9", **arguments) as stream:
            assert stream.read_all().equals(BATCHED.slice(10))
    assert [each.method for each in through.received] == (
        ["CONNECT"] * 2 if scheme == "https" else ["POST"] * 2
    )


@pytest.fixture(scope="module")
def types() -> Iterator[splitarrow.Server]:
    tables = {
        name: pa.Table.from_batches(make_batches(array))
        for name, array in make_arrays_of_all_types().items()
    }
    many = {"mixed": BATCHED, "a/b ü?": MIXED.slice(0, 3)}
    listen = ["tcp://127.0.0.1:0"]
    with splitarrow.serve(tables | many, listen=listen, http="http://127.0.0.1:0") as server:
        yield server


@pytest.mark.parametrize("name", make_arrays_of_all_types())
def test_all_types_arrive(types: splitarrow.Server, name: str) -> None:
    with splitarrow.open(types.uri(name)) as stream:
        expected = list(stream)
    with splitarrow.open(types.http_uri or "", name) as stream:
        assert stream.schema.equals(expected[0].schema, check_metadata=True)
        received = list(stream)
    assert [batch.num_rows for batch in received] == [batch.num_rows for batch in expected]
    for one, other in zip(received, expected, strict=True):
        one.validate(full=True)
        assert one.to_pylist() == other.to_pylist()


def test_names_are_encoded(types: splitarrow.Server) -> None:
    with splitarrow.open(types.http_uri or "", "a/b ü?") as stream:
        assert stream.read_all().num_rows == 3
    with splitarrow.open(f"{types.http_uri}/v1/datasets/a/b%20%C3%BC%3F/data") as stream:
        assert stream.read_all().num_rows == 3


def test_options_of_a_stream(types: splitarrow.Server) -> None:
    target = url(types)
    several: list[Any] = [{"prefetch_bytes": 1 << 20}, {"prefetch_bytes": 0}, {"validate": "full"}]
    for options in several:
        with splitarrow.open(target, **options) as stream:
            assert stream.read_all().equals(BATCHED)
    with splitarrow.open(target, require_transport="http") as stream:
        assert stream.head(5).equals(MIXED.slice(0, 5))
    with splitarrow.open(target) as stream:
        assert pa.table(stream).equals(BATCHED)  # the Arrow C stream
    with pytest.raises(SplitArrowError, match="tcp is required"):
        splitarrow.open(target, require_transport="tcp", filter="n > 1")


def test_asynchronous_reads(types: splitarrow.Server) -> None:
    async def read() -> pa.Table:
        async with splitarrow.aio.open(url(types), filter="n >= 0", prefetch_bytes=1 << 20) as one:
            return pa.Table.from_batches([batch async for batch in one])

    assert anyio.run(read).equals(BATCHED)


def test_a_control_plane_is_not_reached_over_http(types: splitarrow.Server) -> None:
    with pytest.raises(UriError, match=r"as in grpc://127\.0\.0\.1:8815, or pass http://host:port"):
        splitarrow.connect(types.http_uri or "")


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]
)
def test_a_read_through_cut_connections_returns_every_row_once(
    types: splitarrow.Server, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link cuts the responses at random bytes; the read resumes, or raises."""
    monkeypatch.setattr(endpoints, "draw_pause", lambda retry: 0.0)
    draw = random.Random(seed)
    port = int((types.http_uri or "").rpartition(":")[2])
    with proxy(port) as link:
        link.allow = lambda: draw.randint(1, 30_000)
        uri = f"http://127.0.0.1:{link.port}/mixed"
        result = None
        with suppress(TransportError), splitarrow.open(uri, filter="n >= 0", batch_rows=50) as one:
            result = one.read_all()
    if result is None:
        assert link.accepted < 4  # the first response ended before its schema
    else:
        assert result.combine_chunks().equals(BATCHED.combine_chunks())
        assert link.accepted > 2


def test_a_dataset_that_changes_is_never_mixed(tmp_path: Path) -> None:
    """A read over HTTP resumes only in the version that it has begun with."""
    path, other = tmp_path / "t.arrow", tmp_path / "other.arrow"
    for target, table in ((path, BATCHED), (other, BATCHED.slice(1))):
        with pa.ipc.new_file(str(target), table.schema) as writer:
            writer.write_table(table)
    allowed = chain([path.stat().st_size // 2], repeat(math.inf))

    def replace_before_second_request(number: int, data: bytes) -> bool:
        del data
        if number > 0 and other.exists():
            other.replace(path)
        return False

    with splitarrow.serve({"t": path}, http="http://127.0.0.1:0") as server:
        port = int((server.http_uri or "").rpartition(":")[2])
        with proxy(port) as link:
            link.allow = lambda: next(allowed)
            link.inspect = replace_before_second_request
            with splitarrow.open(f"http://127.0.0.1:{link.port}/t") as stream:
                result = error = None
                try:
                    result = stream.read_all()
                except RemoteError as failure:
                    error = failure
                assert 0 < stream.rows_received <= ROWS
    assert link.accepted == 2
    if error is None:
        assert result == BATCHED  # the server has not noticed yet
    else:
        assert error.code == "FAILED_PRECONDITION"
        assert "changed after" in error.message
