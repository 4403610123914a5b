"""Actions: status, cancel, reload, and what there is none of."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from splitarrow.errors import ConfigError
from splitarrow.proto import Flight_pb2 as pb

from .conftest import running

PATH = flight.FlightDescriptor.for_path


def act(client: Any, kind: str, body: bytes = b"") -> Any:
    (result,) = client.do_action(flight.Action(kind, body))
    return json.loads(result.body.to_pybytes())


def test_they_are_listed(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        listed = [action.type for action in client.list_actions()]
    assert {"status", "cancel", "renew", "drop", "reload"} <= set(listed)
    assert {"CancelFlightInfo", "RenewFlightEndpoint"} <= set(listed)


def test_status_tells_what_the_daemon_counts(table: pa.Table) -> None:
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


def test_a_stream_can_be_cancelled_by_its_number() -> None:
    big = pa.table({"x": pa.array(range(8_000_000))})
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


def test_plain_tickets_are_anybodys_and_cannot_be_cancelled(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        info = pb.FlightInfo.FromString(client.get_flight_info(PATH("a")).serialize())
        body = pb.CancelFlightInfoRequest(info=info).SerializeToString()
        (result,) = client.do_action(flight.Action("CancelFlightInfo", body))
        status = pb.CancelFlightInfoResult.FromString(result.body.to_pybytes()).status
        assert status == pb.CANCEL_STATUS_NOT_CANCELLABLE
        (result,) = client.do_action(flight.Action("renew", b"a"))
        assert result.body.to_pybytes() == b"a"


def test_reload_does_what_it_was_given() -> None:
    calls: list[str] = []
    with running(reload=lambda: calls.append("reloaded")) as server, server.client() as client:
        assert act(client, "reload") == {"reloaded": True}
    assert calls == ["reloaded"]


def test_a_configuration_that_is_wrong_is_told() -> None:
    def reload() -> None:
        raise ConfigError("listen: there has to be one address at least")

    told = pytest.raises(pa.ArrowInvalid, match="listen: there has to be one")
    with running(reload=reload) as server, server.client() as client, told:
        act(client, "reload")


def test_what_there_is_none_of() -> None:
    with running() as server, server.client() as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="no configuration to read anew"):
            act(client, "reload")
        with pytest.raises(pa.ArrowNotImplementedError, match="no action 'dance'; there are st"):
            act(client, "dance")
        with pytest.raises(pa.ArrowInvalid, match="no CancelFlightInfoRequest"):
            act(client, "CancelFlightInfo", b"\xff")
        with pytest.raises(pa.ArrowInvalid, match="not UTF-8"):
            act(client, "drop", b"\xff")
