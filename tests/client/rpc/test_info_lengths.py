"""The lengths of lists in a server's shards."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.rpc.info import list_lengths
from splitarrow.errors import LimitError, ProtocolError, RemoteError, SplitArrowError, remote_error
from splitarrow.formats.arrow.lengths import encode_lengths
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.request import Request

REQUEST = Request("d", ("n",), filter="x", version="v")


class Channel:
    """A channel to a server that responds with given bodies, or refuses."""

    address = "grpc://old:1"

    def __init__(
        self, bodies: list[bytes], error: SplitArrowError | None = None, rows: int = 10
    ) -> None:
        self._bodies = bodies
        self._error = error
        self._rows = rows

    def call_unary(self, method: str, message: bytes, *, dataset: str) -> bytes:
        command = Request.parse(flight.FlightDescriptor.FromString(message).cmd)
        assert (method, command, dataset) == ("GetFlightInfo", Request("d", version="v"), "d")
        schema = pa.schema([("n", pa.list_(pa.int8()))]).serialize().to_pybytes()
        return flight.FlightInfo(schema=schema, total_records=self._rows).SerializeToString()

    def call_stream(self, method: str, message: bytes, **options: Any) -> Any:
        action = flight.Action.FromString(message)
        assert (method, action.type) == ("DoAction", "lengths")
        assert Request.parse(action.body) == REQUEST
        limit = (1 << 28) + 8 * (self._rows if self._rows >= 0 else 1 << 29)
        assert options == {"dataset": "d", "timeout": 2.5, "max_bytes": limit}
        yield from (flight.Result(body=body).SerializeToString() for body in self._bodies)
        if self._error is not None:
            raise self._error


def read(*bodies: bytes, error: SplitArrowError | None = None, rows: int = 10) -> Any:
    channel: Any = Channel(list(bodies), error, rows)
    return list_lengths(channel, REQUEST, 2.5)


def encode(header: Any, *batches: list[int | None]) -> bytes:
    (body,) = encode_lengths(header, [pa.array(each, pa.int32()) for each in batches])
    return body


def test_each_record_batch_is_a_chunk() -> None:
    found = read(encode({"shard": 0}, [3, None], [], [1]), encode({"shard": 2}))
    chunks = {shard: [each.to_pylist() for each in found[shard].chunks] for shard in found}
    assert chunks == {0: [[3, None], [], [1]], 2: []}
    assert {each.type for each in found.values()} == {pa.int32()}
    assert read() == {}


GOOD = encode({"shard": 0}, [1, 2])


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{}", GOOD[:-20], encode({}), encode({"shard": -1})),
        *(GOOD.replace(b"[2]", each) for each in (b"[3]", b"[x]", b'"2"', b"2.0")),
        GOOD.replace(b'"rows"', b'"Rows"'),
    ],
    ids=lambda body: str(len(body)),
)
def test_malformed_lengths_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="the server sent malformed lengths") as caught:
        read(encode({"shard": 1}, [3]), body)
    assert caught.value.stream == "d"


def test_a_server_may_send_a_length_for_each_row() -> None:
    parts = encode({"shard": 0}, [1, None], [3]), encode({"shard": 1}, [4])
    for rows in (4, 5, -1):
        assert [len(each) for each in read(*parts, rows=rows).values()] == [3, 1]
    with pytest.raises(LimitError, match=r"grpc://old:1 sent more than 3 lengths") as caught:
        read(*parts, rows=3)
    assert caught.value.stream == "d"


def test_an_older_server_is_named() -> None:
    text = "grpc://old:1 is too old to list lengths; update it (no action 'lengths')"
    with pytest.raises(RemoteError) as caught:
        read(error=remote_error("UNIMPLEMENTED", "no action 'lengths'"))
    assert (caught.value.message, caught.value.code) == (text, "UNIMPLEMENTED")
    with pytest.raises(RemoteError, match=r"^what"):
        read(GOOD, error=remote_error("INVALID_ARGUMENT", "what"))
