"""What a read asks for, by a client that needs no server: its request, its plan, its stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import dataset
from splitarrow.client.dataset.client import BaseClient
from splitarrow.client.rpc.channel import DatasetHold, FlightChannel
from splitarrow.client.rpc.info import DatasetInfo, count_rows, list_lengths
from splitarrow.errors import NotFoundError, UsageError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.request import Request

SCHEMA = pa.schema([("n", pa.int64())])


class Channel:
    """A channel that numbers its holds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def hold_dataset(self, name: str) -> DatasetHold:
        return cast(DatasetHold, f"{name} at {self._name}")


class Client(BaseClient):
    """A client that records what it is asked for."""

    def __init__(self, *channels: str) -> None:
        known = {name: cast(FlightChannel, Channel(name)) for name in channels}
        self.endpoints: list[Any] = [
            SimpleNamespace(channel=known[name], is_kept=False) for name in channels
        ]
        self.planned: list[tuple[Request, frozenset[int] | None, ReadPlan]] = []
        self.counted: list[tuple[Any, Request, float]] = []
        self.closed = 0

    @property
    def uri(self) -> str:
        return "grpc://a:1"

    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        return [self.info(name) for name in ("d", "e")]

    def describe(self, request: Request) -> DatasetInfo:
        if request.dataset not in "de":
            raise NotFoundError(request.dataset)
        return DatasetInfo(request.dataset, 3, None, SCHEMA, "table", "7")

    def schema(self, name: str) -> pa.Schema:
        return SCHEMA

    def drop(self, name: str) -> None: ...

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1

    def _call_for_shards(self, call: Any, request: Request, timeout: float) -> dict[int, Any]:
        self.counted.append((call, request, timeout))
        return {0: [3]}

    def _plan_endpoints(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[Any]]:
        self.planned.append((request, shards, plan))
        return SCHEMA, self.endpoints


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each stream that is opened."""
    opened: list[dict[str, Any]] = []

    def open_stream(
        name: str, schema: pa.Schema, endpoints: Any, parallel: int, window: int, **options: Any
    ) -> Any:
        assert schema == SCHEMA
        del options["trace"]
        opened.append({"name": name, "parallel": parallel, "window": window, **options})
        return endpoints

    monkeypatch.setattr(dataset, "DatasetStream", open_stream)
    return opened


def test_a_read_without_options_has_the_documented_defaults(streams: list[dict[str, Any]]) -> None:
    client = Client("a")
    assert cast(Any, client.read("d")) is client.endpoints
    options = StreamOptions(
        validate=None,
        connect_timeout=10.0,
        stall_timeout=30.0,
        prefetch_bytes=None,
        max_decoded_bytes=1_073_741_824,
        require_transport=None,
    )
    plan = ReadPlan(options, "auto", 2.0, 8, 4, 268_435_456)
    assert client.planned == [(Request("d"), None, plan)]
    assert streams == [{"name": "d", "parallel": 4, "window": 0, "limit": None, "holds": []}]


def test_a_read_passes_its_options_on(streams: list[dict[str, Any]]) -> None:
    client = Client("a")
    limits = Limits(nesting=3)
    client.read(
        "d",
        columns="n",
        limit=5,
        batch_rows=2,
        compression="lz4",
        transport="tcp",
        validate="off",
        connect_timeout=1.5,
        location_timeout=0.5,
        stall_timeout=None,
        prefetch_bytes=100,
        max_decoded_bytes=1000,
        require_transport="cma",
        window_bytes=300,
        parallel=2,
        resume_attempts=1,
        limits=limits,
        shards=[2, 2],
        batches=(0, 1),
        version="7",
    )
    options = StreamOptions("off", 1.5, None, 100, 1000, limits, require_transport="cma")
    request = Request(
        "d", ("n",), limit=5, batch_rows=2, compression="lz4", version="7", batches=(0, 1)
    )
    plan = ReadPlan(options, "tcp", 0.5, 1, 2, 300)
    assert client.planned == [(request, frozenset([2]), plan)]
    assert streams == [{"name": "d", "parallel": 2, "window": 100, "limit": 5, "holds": []}]


def test_a_filter_is_serialized_for_the_schema_of_the_dataset(
    streams: list[dict[str, Any]],
) -> None:
    client = Client("a")
    client.read("d", filter=pc.field("n") > 1)
    client.read("d", filter="n > 1")
    client.count_rows("d", filter="n > 1", version="7", timeout=2.5)
    client.count_rows("d")
    client.list_lengths("d", "n", filter="n > 1", version="7", timeout=2.5)
    one, other = (request.filter for request, _, _ in client.planned)
    assert one is not None
    assert one == other
    assert client.counted == [
        (count_rows, Request("d", filter=one, version="7"), 2.5),
        (count_rows, Request("d"), 600.0),
        (list_lengths, Request("d", ("n",), filter=one, version="7"), 2.5),
    ]


@pytest.mark.parametrize(("window", "decoded", "used"), [(70, 50, 50), (50, 70, 50)])
def test_one_window_is_shared_by_several_endpoints(
    streams: list[dict[str, Any]], window: int, decoded: int, used: int
) -> None:
    client = Client("a", "b")
    client.read("d", window_bytes=window, max_decoded_bytes=decoded, prefetch_bytes=9, limit=5)
    (stream,) = streams
    assert (stream["window"], stream["limit"]) == (used, 5)
    # The server has limited the rows of a single endpoint, and prefetching is opted into.
    client.endpoints = client.endpoints[:1]
    client.read("d", window_bytes=window, max_decoded_bytes=decoded, prefetch_bytes=9, limit=5)
    assert (streams[1]["window"], streams[1]["limit"]) == (9, None)
    client.read("d", max_decoded_bytes=decoded, prefetch_bytes=99, limit=5, shards=[0])
    assert (streams[2]["window"], streams[2]["limit"]) == (decoded, 5)


def test_a_read_of_several_endpoints_holds_the_dataset_once_at_each_server(
    streams: list[dict[str, Any]],
) -> None:
    Client("a", "b", "a").read("d")
    Client("a").read("d")
    Client().read("d")
    assert [stream["holds"] for stream in streams] == [["d at a", "d at b"], [], []]


def test_batches_are_selected_from_one_shard(streams: list[dict[str, Any]]) -> None:
    client = Client("a")
    for shards in ([], [1, 2]):
        with pytest.raises(UsageError, match=f"one shard; shards names {len(shards)} of 'd'"):
            client.read("d", batches=(0, 1), shards=shards)
    assert client.planned == []
    client.read("d", batches=(0, 1))
    client.read("d", batches=(0, 1), shards=[1])
    client.read("d", shards=[1, 2])
    assert [shards for _, shards, _ in client.planned] == [None, {1}, {1, 2}]
    with pytest.raises(UsageError, match="cannot request"):
        client.read("")


def test_a_client_is_a_collection_of_names_and_a_context() -> None:
    with Client() as client:
        assert list(client) == ["d", "e"]
        assert [name in client for name in ("d", "e", "x", 1)] == [True, True, False, False]
        assert client.__contains__("x") is False
        assert client["d"].info == client.dataset("d").info == client.info("d")
        with pytest.raises(NotFoundError):
            client["x"]
        assert not client.closed
    assert client.closed == 1
