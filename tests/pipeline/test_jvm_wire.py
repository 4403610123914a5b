"""The reader in the JVM against a server that does what no splitarrow daemon does."""

from __future__ import annotations

import base64
import json
import struct
import sys
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from helpers.wire_writer import HEADER, TAGGED, WANT_DATA, Manners, Writer, messages_of
from splitarrow.pipeline import register
from splitarrow.pipeline.jvm import FORMAT
from splitarrow.pipeline.jvm.reader import DRIVER_PYTHON
from splitarrow.pipeline.types import spark_schema

SPARK_ERRORS = (PySparkException, Py4JJavaError)
ROWS = 100
TABLE = pa.table(
    {
        "n": pa.array(range(3 * ROWS), pa.int64()),
        "s": pa.array([None if n % 3 == 0 else f"row {n}" for n in range(3 * ROWS)]),
    }
)
PLANNER = f"""#!{sys.executable}
import pathlib, sys
for line in sys.stdin:
    operation = line.split('"operation":"')[1].split('"')[0]
    print(pathlib.Path(__file__ + "." + operation).read_text(), flush=True)
"""


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=ROWS)
    return sink.getvalue().to_pybytes()


STREAM = stream_of(TABLE)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory):
    """A planner that answers with what a test puts beside it."""
    script = tmp_path_factory.mktemp("planner") / "python"
    script.write_text(PLANNER)
    script.chmod(0o755)
    return script


@pytest.fixture
def read(spark, planner):
    """Read a dataset whose only shard is at the given servers."""
    register(spark, jvm_reader=True)
    original = spark.conf.get(DRIVER_PYTHON)
    spark.conf.set(DRIVER_PYTHON, str(planner))

    def load(*writers, version="", schema=TABLE.schema, memory=1 << 24, stall=5000):
        describe = {
            "dataset": "crafted",
            "problem": None,
            "schema": spark_schema(schema).jsonValue(),
            "version": version,
            "rows": -1,
            "bytes": -1,
            "pushdown": False,
            "connect_millis": 10_000,
            "stall_millis": stall,
            "memory_limit": memory,
        }
        replicas = [
            {
                "control": f"server {index}",
                "version": version,
                "shard": None,
                "ticket": base64.b64encode(b'{"dataset": "crafted"}').decode(),
                "addresses": [
                    {
                        "host": "127.0.0.1",
                        "port": writer.listener.getsockname()[1],
                        "want_data": str(WANT_DATA),
                        "keep_alive": None,
                    }
                ],
            }
            for index, writer in enumerate(writers)
        ]
        shard = {"ordinal": 0, "rows": -1, "replicas": replicas}
        answers = {"describe": describe, "plan": {"partitions": [[shard]], "limit": -1}}
        for operation, answer in answers.items():
            planner.with_name(f"python.{operation}").write_text(json.dumps(answer))
        return spark.read.format(FORMAT).option("reader", "jvm").load("crafted").toArrow()

    yield load
    spark.conf.set(DRIVER_PYTHON, original)


@pytest.mark.parametrize(
    "manners",
    [
        Manners(order="bodies first"),
        Manners(order="all bodies first"),
        Manners(order="backwards"),
        Manners(repeat=3, chunk=1000),
    ],
    ids=str,
)
def test_frames_in_any_order_and_number_make_the_same_rows(read, manners):
    with Writer(STREAM, manners) as writer:
        assert read(writer).equals(TABLE)


class Crafted(Writer):
    """Sends the schema, and then the given frames."""

    def __init__(self, *extra: bytes) -> None:
        super().__init__(STREAM)
        self.extra = extra

    def frames(self) -> Any:
        return [next(iter(super().frames())), *self.extra]


def metadata(payload: bytes) -> bytes:
    return HEADER.pack(0, len(payload), 0) + payload


def compressed_stream(codec: str, size: int) -> bytes:
    """Return a stream with a compressed buffer that declares another size."""
    table = pa.table({"n": pa.array([7] * 5000, pa.int64())})
    stream = stream_of(table, compression=codec)
    true_size = struct.pack("<q", 8 * ROWS)
    assert true_size in stream
    return stream.replace(true_size, struct.pack("<q", size), 1)


FAULTS: dict[str, tuple[Any, str]] = {
    "a broken connection": (lambda: Writer(STREAM, Manners(cut=3000)), "ended before the stream"),
    "no end": (lambda: Writer(STREAM, Manners(end=False, silent=True)), "no data for"),
    "an end that counts too few": (lambda: Writer(STREAM, Manners(count=2)), "end of the stream"),
    "an end that counts too many": (
        lambda: Writer(STREAM, Manners(count=9, silent=True)),
        "no data for",
    ),
    "a failure": (
        lambda: Writer(STREAM, Manners(failure=("NOT_FOUND", "it is gone"))),
        "it is gone",
    ),
    "another protocol": (
        lambda: Writer(STREAM, Manners(preface=b"HTTP/1.1")),
        "does not speak this protocol",
    ),
    "a body that is missing": (lambda: Writer(STREAM, Manners(leave_out={2})), "no data for"),
    "a reserved bit": (lambda: Writer(STREAM, Manners(reserved=1 << 40)), "a body has the tag"),
    "an endless repetition": (
        lambda: Writer(STREAM, Manners(repeat_first_every=0, end=False)),
        "repeats messages",
    ),
    "a body of an exbibyte": (lambda: Crafted(HEADER.pack(TAGGED, 1 << 60, 1)), "memory_limit"),
    "metadata of a gibibyte": (lambda: Crafted(HEADER.pack(0, 1 << 30, 0)), "1073741824 bytes"),
    "a malformed header": (lambda: Crafted(struct.pack("<QQQ", 7, 0, 0)), "malformed header"),
    "an unknown type": (lambda: Crafted(metadata(struct.pack("<BI", 9, 1))), "unknown type 9"),
    "metadata that is none": (
        lambda: Crafted(metadata(struct.pack("<BI", 1, 1) + b"\xff" * 40)),
        "crafted",
    ),
    "a second schema": (
        lambda: Crafted(metadata(struct.pack("<BI", 1, 1) + messages_of(STREAM)[0][0])),
        "only the first message is a schema",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_without_a_proven_end_raises(read, fault):
    make, message = FAULTS[fault]
    with make() as writer, pytest.raises(SPARK_ERRORS, match=message):
        read(writer, stall=1000)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize(("size", "message"), [(1 << 50, "memory_limit"), (16, "declared size")])
def test_a_false_size_of_a_compressed_buffer_raises(read, codec, size, message):
    schema = pa.schema({"n": pa.int64()})
    with (
        Writer(compressed_stream(codec, size)) as writer,
        pytest.raises(SPARK_ERRORS, match=message),
    ):
        read(writer, schema=schema)


def test_a_batch_beyond_the_memory_limit_is_refused(read):
    with Writer(STREAM) as writer, pytest.raises(SPARK_ERRORS, match="memory_limit"):
        read(writer, memory=1000)


def test_a_replica_continues_after_the_last_row(read):
    sent = messages_of(STREAM)[:3]
    first = sum(HEADER.size + 5 + len(metadata) for metadata, _ in sent) + 100
    first += sum(HEADER.size + len(body) for _, body in sent if body is not None)
    rest = stream_of(TABLE.slice(2 * ROWS))
    with Writer(STREAM, Manners(cut=first)) as one, Writer(rest) as other:
        assert read(one, other, version="1").equals(TABLE)
    assert json.loads(one.tickets[0]) == {"dataset": "crafted"}
    assert json.loads(other.tickets[0]) == {"dataset": "crafted", "offset": 2 * ROWS}


def test_a_server_that_refuses_is_replaced(read):
    failing = Manners(failure=("RESOURCE_EXHAUSTED", "too many readers"))
    with Writer(stream_of(TABLE.slice(0, 0)), failing) as one, Writer(STREAM) as other:
        assert read(one, other, version="1").equals(TABLE)
    with Writer(STREAM, failing) as one, pytest.raises(SPARK_ERRORS, match="too many readers"):
        read(one, version="1")
