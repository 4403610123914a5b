"""A client reads with a plan that it has kept, and never gets old data from it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import flight

import splitarrow
from helpers.files import write_file
from helpers.publication import publish
from splitarrow.client.dataset.client import Client
from splitarrow.client.dataset.requests import KeptPlans
from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.errors import NotFoundError, StallError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.publication.version_store import VersionStore

OLD, NEW = (pa.table({"n": values}) for values in ([1, 2], [3, 4, 5]))


class CountedClient:
    """A client, and the methods of the control plane that it has called."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls: list[str] = []
        call_unary = client.channel.call_unary

        def count(method: str, *arguments: object, **options: object) -> bytes:
            self.calls.append(method)
            return call_unary(method, *arguments, **options)  # pyright: ignore

        client.channel.call_unary = count  # pyright: ignore

    def read(self, name: str = "d", **options: Any) -> pa.Table:
        with self.client.read(name, **options) as stream:
            return stream.read_all()

    def count(self) -> int:
        """Return the number of calls since the last count."""
        calls, self.calls[:] = len(self.calls), []
        return calls


@contextmanager
def reading(datasets: dict[str, object], **settings: object) -> Generator[CountedClient]:
    options = {"control": "grpc://127.0.0.1:0", **settings}
    with (
        splitarrow.serve(datasets, **options) as server,  # pyright: ignore
        splitarrow.connect(server.control_uri or "") as client,
    ):
        yield CountedClient(client)


@pytest.fixture
def ticket_keys(tmp_path: Path) -> Path:
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef" * 4)
    keys.chmod(0o600)
    return keys


def test_a_kept_plan_saves_the_call() -> None:
    with reading({"d": OLD}) as reader:
        ways: list[dict[str, Any]] = [{}, {"columns": ["n"], "limit": 1}]
        for options in ways:
            expected = OLD.slice(0, options.get("limit", 2))
            assert reader.read(**options) == expected
            before = reader.count()
            assert reader.read(**options) == expected
            assert (before, reader.count()) == (1, 0)


def test_a_filter_reads_the_schema_once_for_a_version(tmp_path: Path) -> None:
    path = write_file(tmp_path / "d.arrow", OLD)
    with reading({"d": path}) as reader:
        assert [reader.read(filter="n > 1").num_rows for _ in range(3)] == [1, 1, 1]
        assert reader.count() == 2
        assert reader.read(filter="n > 0", transport="flight", columns=["n"]) == OLD
        assert reader.count() == 0
        # The same condition means something else in the next version.
        texts = pa.table({"n": ["10", "9"]})
        os.replace(write_file(tmp_path / "new.arrow", texts), path)
        for transport in ("auto", "flight"):
            assert reader.read(filter=("n", "<", "2"), transport=transport).num_rows == 1
        os.replace(write_file(tmp_path / "new.arrow", NEW), path)
        for transport in ("auto", "flight"):
            assert reader.read(filter="n > 3", transport=transport) == NEW.slice(1)
        with pytest.raises(UsageError):
            reader.read(filter="m > 3")


@pytest.mark.parametrize("signed", [False, True])
def test_data_arrives_with_its_plan_over_doget(signed: bool, ticket_keys: Path) -> None:
    with reading({"d": OLD}, **({"ticket_key_file": ticket_keys} if signed else {})) as reader:
        for _ in range(2):
            assert reader.read(transport="flight") == OLD
            assert reader.read(transport="flight", columns=["n"], limit=1) == OLD.slice(0, 1)
        with pytest.raises(NotFoundError):
            reader.read("e", transport="flight")
        assert reader.count() == 0


def test_a_server_that_sends_no_plan_by_doget_is_not_asked_again() -> None:
    class Server(flight.FlightServerBase):
        tickets: ClassVar[list[bytes]] = []

        def get_flight_info(self, context: object, descriptor: Any) -> flight.FlightInfo:
            endpoint = flight.FlightEndpoint(b"t", ["arrow-flight-reuse-connection://?"])
            return flight.FlightInfo(OLD.schema, descriptor, [endpoint], -1, -1)

        def do_get(self, context: object, ticket: flight.Ticket) -> flight.RecordBatchStream:
            self.tickets.append(ticket.ticket)
            return flight.RecordBatchStream(OLD)

        def list_actions(self, context: object) -> list[Any]:
            return []

    with (
        Server("grpc://127.0.0.1:0") as server,
        splitarrow.connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        for _ in range(2):
            assert client.read("d", transport="flight").read_all() == OLD
    assert Server.tickets == [b'{"dataset": "d"}', b"t", b"t"]


def test_parts_of_a_kept_plan_are_of_the_version_that_the_first_confirms(tmp_path: Path) -> None:
    for number, table in enumerate((OLD, NEW)):
        write_file(tmp_path / f"{number}.arrow", table)
    with reading({"d": tmp_path}) as reader:
        both = pa.concat_tables([OLD, NEW])
        assert [reader.read(), reader.read()] == [both, both]
        assert reader.count() == 1
        assert reader.read(shards=[1]) == NEW
        assert reader.count() == 0


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = write_file(tmp_path / "d.arrow", OLD)
    with reading({"d": path}) as reader:
        assert reader.read() == OLD
        os.replace(write_file(tmp_path / "new.arrow", NEW), path)
        assert reader.read() == NEW
        assert reader.read() == NEW
        assert reader.count() == 2


def test_a_published_version_is_not_read_after_the_next_one(tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "one", OLD)
    with reading({"d": tmp_path}) as reader:
        assert reader.read() == OLD
        version = reader.client.info("d").version
        publish(store, "two", NEW)
        assert reader.read() == NEW
        assert reader.read(version=version) == OLD
        reader.count()
        assert reader.read(version=version) == OLD
        assert reader.read() == NEW
        assert reader.count() == 0


def test_a_delta_table_is_not_read_in_an_old_version(tmp_path: Path) -> None:
    write_deltalake(tmp_path, OLD)
    with reading({"d": tmp_path}) as reader:
        assert reader.read() == OLD
        write_deltalake(tmp_path, NEW, mode="overwrite")
        reader.client.info("d")
        assert reader.read() == NEW


def test_an_upload_that_was_replaced_or_dropped(tmp_path: Path) -> None:
    with reading({}, writable=tmp_path) as reader:
        reader.client.put("d", OLD)
        assert reader.read() == OLD
        reader.client.drop("d")
        with pytest.raises(NotFoundError):
            reader.read()
        reader.client.put("d", NEW)
        assert reader.read() == NEW


def test_signed_tickets_are_good_for_one_plan(ticket_keys: Path) -> None:
    with reading({"d": OLD}, ticket_key_file=ticket_keys) as reader:
        assert [reader.read(), reader.read()] == [OLD, OLD]
        assert reader.count() == 2


def info(seconds: int = 300, **fields: object) -> DatasetInfo:
    described = {"version": "7", "endpoints": (Endpoint(b"d", ()),), **fields}
    return DatasetInfo("d", 1, 1, OLD.schema, "table", plan_seconds=seconds, **described)  # pyright: ignore


def test_plans_are_kept_for_the_time_that_the_server_states() -> None:
    now = 0.0
    plans = KeptPlans(lambda: now)
    for unusable in (info(0), info(version=""), info(endpoints=())):
        plans.add(Request("d"), unusable)
        assert plans.get(Request("d")) is None
    plans.add(Request("d"), info(endpoints=(Endpoint(b"sa1.x.y", ()),)))
    assert plans.get(Request("d")) is None
    plans.add(Request("d"), info(10))
    now = 9.0
    assert plans.get(Request("d")) == info(10)
    now = 10.0
    assert plans.get(Request("d")) is None
    plans.add(Request("d"), info())
    plans.drop(Request("d"), StallError("silent"))
    plans.add(Request("d"), info())
    assert plans.get(Request("d")) is None
    for number in range(100):
        plans.add(Request(f"d{number}"), info())
    assert plans.get(Request("d0")) is None
    assert plans.get(Request("d99")) is not None
