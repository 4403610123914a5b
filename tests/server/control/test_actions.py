"""Actions: status, cancel, reload, and invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import running
from helpers.files import write_file
from helpers.publication import numbers, publish
from splitarrow.errors import ConfigError
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.reload import ReloadReport

PATH = flight.FlightDescriptor.for_path


def act(client: Any, action: str, body: bytes = b"") -> Any:
    (result,) = client.do_action(flight.Action(action, body))
    return json.loads(result.body.to_pybytes())


def test_all_actions_are_listed(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        listed = [action.type for action in client.list_actions()]
    assert {"status", "cancel", "renew", "drop", "reload"} <= set(listed)
    assert {"CancelFlightInfo", "RenewFlightEndpoint"} <= set(listed)


def test_status_returns_the_metrics_of_the_daemon(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        client.do_get(flight.Ticket(b"a")).read_all()
        status = act(client, "status")
        assert status["stats"] == server.daemon.stats()
        assert status["stats"]["rows"] == 3000
        assert status["datasets"] == ["a"]
        assert status["listen"] == [str(uri) for uri in server.daemon.uris]
        assert status["uptime_seconds"] > 0
        assert status["draining"] is False
        assert status["streams"] == []


def test_ranges_are_those_of_the_manifest(table: pa.Table, tmp_path: Path) -> None:
    store = VersionStore(tmp_path)
    publish(store, "one", numbers(0), numbers(5))
    with running({"numbers": tmp_path, "a": table}) as server, server.client() as client:

        def ranges(body: bytes) -> list[Any]:
            results = client.do_action(flight.Action("ranges", body))
            return [json.loads(result.body.to_pybytes()) for result in results]

        listed = ranges(b'{"dataset": "numbers", "columns": ["n"]}')
        version = listed[0]["version"]
        assert version.startswith("1-")
        assert listed == [
            {
                "version": version,
                "shard": shard,
                "rows": 10,
                "columns": {"n": {"min": begin, "max": begin + 9, "nulls": 0}},
            }
            for shard, begin in enumerate((0, 5))
        ]
        assert ranges(b"numbers")[0]["columns"].keys() == {"n", "text"}
        with pytest.raises(pa.ArrowInvalid, match="its version is"):
            ranges(b'{"dataset": "numbers", "version": "9-x"}')
        with pytest.raises(NotImplementedError, match="'a' is not a published dataset"):
            ranges(b"a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reader": None}, "must be"),
        ({"reader": ""}, "must be"),
        ({"reader": "r" * 129}, "must be"),
        ({"dataset": 1}, "must be"),
        ({"version": 1}, "must be"),
        ({"version": "9-x"}, "its version is"),
        ({"shards": None}, "must be"),
        ({"shards": [True]}, "must be"),
        ({"shards": [-1]}, "must be"),
        ({"shards": [2]}, "has no shard 2"),
        ({"shards": [0] * 400_000}, "the limit is 1048576"),
        ({"position": -1}, "must be"),
        ({"position": 0.5}, "must be"),
    ],
)
def test_a_wrong_announcement_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    publish(VersionStore(tmp_path), "one", numbers(0), numbers(5))
    values = {"dataset": "numbers", "reader": "r", "shards": [1, 0], "position": 0}
    with running({"numbers": tmp_path}) as server, server.client() as client:
        assert act(client, "announce", json.dumps(values).encode()) == {"used": False}
        with pytest.raises(pa.ArrowInvalid, match=message):
            act(client, "announce", json.dumps({**values, **fields}).encode())


def test_the_order_of_a_table_is_not_used(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        body = b'{"dataset": "a", "reader": "r", "shards": [7]}'
        assert act(client, "announce", body) == {"used": False}


def test_the_ranges_of_a_version_without_shards_are_empty(tmp_path: Path) -> None:
    VersionStore(tmp_path).commit("one", pa.schema([("n", pa.int64())]), [], append=False)
    with running({"none": tmp_path}) as server, server.client() as client:
        found = act(client, "ranges", b"none")
    assert (found["shard"], found["rows"], found["columns"]) == (0, 0, {})


def test_rows_are_counted_shard_by_shard(table: pa.Table, tmp_path: Path) -> None:
    for number in range(3):
        write_file(tmp_path / f"{number}.arrow", table.slice(0, 100 + number), batch_rows=40)
    with running({"many": tmp_path}) as server, server.client() as client:

        def count(body: bytes) -> list[Any]:
            results = client.do_action(flight.Action("count", body))
            return [json.loads(result.body.to_pybytes()) for result in results]

        counted = count(b"many")
        assert [each["shard"] for each in counted] == [0, 1, 2]
        assert [each["rows"] for each in counted] == [[40, 40, 20], [40, 40, 21], [40, 40, 22]]
        assert count(b'{"dataset": "many", "shard": 2}') == counted[2:]
        with pytest.raises(pa.ArrowInvalid, match="no shard 3"):
            count(b'{"dataset": "many", "shard": 3}')
        with pytest.raises(pa.ArrowInvalid, match="has changed"):
            count(b'{"dataset": "many", "version": "1"}')


def test_a_stream_can_be_cancelled_by_its_number() -> None:
    big = pa.table({"x": pa.array(np.arange(8_000_000))})
    with running({"big": big}) as server, server.client() as client:
        reader = client.do_get(flight.Ticket(b'{"dataset": "big", "batch_rows": 1000}'))
        assert reader.read_chunk().data.num_rows == 1000
        (stream,) = act(client, "status")["streams"]
        assert stream["dataset"] == "big"
        assert act(client, "cancel", json.dumps({"stream": stream["stream"]}).encode())
        with pytest.raises(pa.ArrowException, match=r"cancelled.*'big'"):
            reader.read_all()
        with pytest.raises(KeyError, match="no stream 99"):
            act(client, "cancel", b'{"stream": 99}')
        for wrong in (b"", b"[]", b'{"stream": "1"}', b"{}"):
            with pytest.raises(pa.ArrowInvalid):
                act(client, "cancel", wrong)


def test_unsigned_tickets_cannot_be_cancelled(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        info = pb.FlightInfo.FromString(client.get_flight_info(PATH("a")).serialize())
        body = pb.CancelFlightInfoRequest(info=info).SerializeToString()
        (result,) = client.do_action(flight.Action("CancelFlightInfo", body))
        status = pb.CancelFlightInfoResult.FromString(result.body.to_pybytes()).status
        assert status == pb.CANCEL_STATUS_NOT_CANCELLABLE
        (result,) = client.do_action(flight.Action("renew", b"a"))
        assert result.body.to_pybytes() == b"a"


def test_reload_calls_its_function() -> None:
    report = ReloadReport(added=["a"], restart=["listen"])
    with running(reload=lambda: report) as server, server.client() as client:
        assert act(client, "reload") == {"reloaded": True, **vars(report)}


def test_a_wrong_configuration_is_reported_to_the_caller() -> None:
    def reload() -> None:
        raise ConfigError("listen: there has to be one address at least")

    refused = pytest.raises(pa.ArrowInvalid, match="listen: there has to be one")
    with running(reload=reload) as server, server.client() as client, refused:
        act(client, "reload")


def test_unknown_and_malformed_actions_are_refused() -> None:
    with running() as server, server.client() as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="no action 'dance'; the actions"):
            act(client, "dance")
        with pytest.raises(pa.ArrowInvalid, match="not a valid CancelFlightInfoRequest"):
            act(client, "CancelFlightInfo", b"\xff")
        with pytest.raises(pa.ArrowInvalid, match="not UTF-8"):
            act(client, "drop", b"\xff")
