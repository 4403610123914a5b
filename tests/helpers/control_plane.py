"""Control planes on real ports, in a thread of this process."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyarrow import flight

from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.access_control import AccessControl
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.config import load_settings
from splitarrow.server.daemon import Daemon


@dataclass
class Running:
    """A serving daemon with a control plane."""

    daemon: Daemon
    portal: BlockingPortal

    @property
    def uri(self) -> str:
        assert self.daemon.control_uri is not None
        return self.daemon.control_uri

    @property
    def port(self) -> int:
        port = DataUri.parse(self.uri).port
        assert port is not None
        return port

    def drain(self) -> None:
        self.portal.call(self.daemon.drain)

    def cut(self) -> None:
        self.portal.call(self.daemon.cut)

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def client(self, **options: Any) -> Any:
        """Return pyarrow's Flight client, whose type stubs are incomplete."""
        return flight.FlightClient(self.uri, **options)


@contextmanager
def running(
    datasets: Mapping[str, Any] | None = None,
    *,
    control: str = "grpc://127.0.0.1:0",
    listen: tuple[str, ...] = ("tcp://127.0.0.1:0",),
    access: AccessControl | None = None,
    reload: Any = None,
    limits: Limits = DEFAULT_LIMITS,
    **settings: Any,
) -> Generator[Running]:
    """Serve, and drain at the end."""

    catalog = Catalog(datasets or {})
    server_settings = load_settings(listen=listen, control=control, **settings)
    daemon = Daemon(catalog, server_settings, limits, access)
    if reload is not None:
        daemon.reloader.reload = reload
    with ExitStack() as stack:
        stack.callback(catalog.close)
        daemon.bind()
        portal = stack.enter_context(start_blocking_portal())
        done, _ = portal.start_task(daemon.run)
        served = Running(daemon, portal)
        stack.callback(done.result, timeout=20)
        stack.callback(served.drain)
        yield served


def bearer(token: str) -> flight.FlightCallOptions:
    headers: Any = [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(headers=headers)


PATH = flight.FlightDescriptor.for_path


def put(
    client: Any,
    name: str,
    table: pa.Table,
    options: flight.FlightCallOptions | None = None,
    *,
    replace: bool = False,
    **write: Any,
) -> dict[str, Any]:
    """Upload with pyarrow's Flight client and return the server's response."""
    command = json.dumps({"dataset": name, "if_exists": "replace"})
    descriptor = flight.FlightDescriptor.for_command(command) if replace else PATH(name)
    writer, answers = client.do_put(descriptor, table.schema, options=options)
    with writer:
        writer.write_table(table, **write)
        writer.done_writing()
        answer = answers.read()
        assert answer is not None
        return json.loads(answer.to_pybytes())


CANARY = "canary-token-of-anna"


TOKENS = f"""
[[tokens]]
name = "anna"
token = "{CANARY}"
datasets = ["flights", "scores"]
write = ["scores"]

[[tokens]]
name = "berta"
token = "secret-token-of-berta"
datasets = ["trips"]
write = ["?", "[!a-z]*"]

[[tokens]]
name = "root"
token = "secret-token-of-root"
datasets = ["*"]
write = ["*"]
"""


VARIED = pa.table(
    {
        "null": pa.nulls(5),
        "bool": pa.array([True, None, False, True, None]),
        "int8": pa.array([1, -1, None, 127, -128], pa.int8()),
        "uint64": pa.array([1, 2, None, 2**64 - 1, 0], pa.uint64()),
        "half": pa.array([1.5, None, 0.0, -2.0, 65504.0]).cast(pa.float16()),
        "double": pa.array([1.5, None, float("inf"), -0.0, 3.25]),
        "decimal": pa.array([1, None, 3, 4, 5], pa.decimal128(10, 2)),
        "decimal256": pa.array([1, None, 3, 4, 5], pa.decimal256(60, 2)),
        "string": pa.array(["a", None, "", "ü", "zzz"]),
        "large_string": pa.array(["a", None, "", "ü", "zzz"], pa.large_string()),
        "view": pa.array(["short", None, "", "longer than twelve bytes", "z"], pa.string_view()),
        "binary": pa.array([b"a", None, b"", b"\0", b"zzz"]),
        "fixed": pa.array([b"ab", None, b"cd", b"ef", b"gh"], pa.binary(2)),
        "date": pa.array([1, None, 3, 4, 5], pa.date32()),
        "timestamp": pa.array([1, None, 3, 4, 5], pa.timestamp("us", "Europe/Zurich")),
        "duration": pa.array([1, None, 3, 4, 5], pa.duration("ns")),
        "month": pa.array(
            [None, (1, 2, 3), (0, 0, 0), None, (4, 5, 6)], pa.month_day_nano_interval()
        ),
        "list": pa.array([[1], None, [], [2, None], [3]], pa.list_(pa.int32())),
        "large_list": pa.array([["a"], None, [], ["b", None], ["c"]], pa.large_list(pa.string())),
        "list_view": pa.array([[1], None, [], [2, None], [3]], pa.list_view(pa.int32())),
        "fixed_list": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int16(), 2)),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {}, {"a": 4}]),
        "map": pa.array(
            [[("k", 1)], None, [], [("a", 2), ("b", None)], [("c", 3)]],
            pa.map_(pa.string(), pa.int64()),
        ),
        "dictionary": pa.array(["x", None, "y", "x", "x"]).dictionary_encode(),
        "nested_dictionary": pa.array([["x"], None, ["y", "x"], [], ["x"]]).cast(
            pa.list_(pa.dictionary(pa.int8(), pa.string()))
        ),
        "run_end": pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 5], pa.int32()), pa.array(["a", None])
        ),
        "union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0, 0, 1], pa.int8()),
            pa.array([0, 0, 1, 2, 1], pa.int32()),
            [pa.array([1, 2, 3]), pa.array(["a", "b"])],
        ),
    }
)
