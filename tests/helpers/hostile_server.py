"""A process that serves what no server should, with sockets and struct.

    python -m helpers.hostile_server ATTACK

It prints its port, and serves every connection until it is killed.
"""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa

from helpers.crafting import INT, LIST, STRUCT, Crafter
from helpers.streams import ipc_stream
from helpers.wire_writer import (
    END_OF_STREAM,
    HEADER,
    MESSAGE,
    PREFACE,
    TAGGED,
    UNTAGGED,
    WANT_DATA,
    Pair,
    messages_of,
)

Stream = Iterator[Pair | None]
"""The messages of a stream. None is its end."""


def _messages(batches: list[pa.RecordBatch], *, deltas: bool = False) -> list[Pair]:
    return messages_of(ipc_stream(batches, batches[0].schema, emit_dictionary_deltas=deltas))


def _dictionaries(entries: int, more: int) -> list[Pair]:
    """Return a schema, a dictionary of text, a batch, another dictionary, and a batch.

    The second dictionary has `more` entries more. It is a delta unless that is negative.
    """
    texts = [f"{number:064}" for number in range(entries + abs(more))]
    first = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(texts[:entries]))
    longer = texts if more > 0 else texts[::-1]
    second = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(longer))
    batches = [pa.record_batch([each], names=["a"]) for each in (first, second)]
    return _messages(batches, deltas=more > 0)


def deltas() -> Stream:
    """Return deltas without end, each followed by a batch."""
    schema, first, _, delta, batch = _dictionaries(1, 4096)
    yield from (schema, first)
    yield from itertools.cycle((delta, batch))


def small_deltas() -> Stream:
    """Return deltas of one entry without end, and no batch."""
    schema, first, _, delta, _ = _dictionaries(1, 1)
    yield from (schema, first)
    yield from itertools.repeat(delta)


def dictionaries() -> Stream:
    """Return dictionaries without end, each in place of the one before, and no batch."""
    schema, _, _, other, _ = _dictionaries(16_384, -1)
    yield schema
    yield from itertools.repeat(other)


def empty_batches() -> Stream:
    """Return a million batches without rows."""
    schema, batch = _messages([pa.record_batch({"a": pa.array([], pa.int64())})])
    yield schema
    yield from itertools.repeat(batch, 1_000_000)
    yield None


def deep_schema() -> Stream:
    """Return a schema of 10,000 lists inside one another."""
    c = Crafter()
    child = c.field(c.text("n"), INT, c.int_type())
    for _ in range(10_000):
        child = c.field(c.text("n"), LIST, c.empty_table(), [child])
    yield _schema_message(c, c.schema([child])), None


def shared_schema() -> Stream:
    """Return a schema of 60 levels, whose structs have the same two children: 2^60 fields."""
    c = Crafter()
    children = [c.field(c.text("n"), INT, c.int_type())] * 2
    for _ in range(60):
        children = [c.field(c.text("n"), STRUCT, c.empty_table(), children)] * 2
    yield _schema_message(c, c.schema(children)), None


def wide_schema() -> Stream:
    """Return a schema of 50,000 columns, and then batches that do not fit it."""
    c = Crafter()
    name, data_type = c.text(""), c.int_type()
    yield _schema_message(c, c.schema([c.field(name, INT, data_type)] * 50_000)), None
    _, batch = _messages([pa.record_batch({"a": [1]})])
    yield from itertools.repeat(batch)


def _schema_message(crafter: Crafter, schema: int) -> bytes:
    return crafter.message(1, schema)


def schemas() -> Stream:
    """Return schemas without end."""
    schema, _ = _messages([pa.record_batch({"a": [1]})])
    yield from itertools.repeat(schema)


ATTACKS = {
    each.__name__: each
    for each in (
        deltas,
        small_deltas,
        dictionaries,
        empty_batches,
        deep_schema,
        shared_schema,
        wide_schema,
        schemas,
    )
}
_CHUNK = 1 << 16


def _encode(stream: Stream) -> Iterator[bytes]:
    for sequence, pair in enumerate(stream):
        if pair is None:
            yield HEADER.pack(UNTAGGED, 5, 0) + struct.pack("<BI", END_OF_STREAM, sequence)
            return
        metadata, body = pair
        yield HEADER.pack(UNTAGGED, 5 + len(metadata), 0)
        yield struct.pack("<BI", MESSAGE, sequence) + metadata
        if body is not None:
            yield HEADER.pack(TAGGED, len(body), sequence) + body


def _serve(connection: socket.socket, stream: Stream) -> None:
    with connection:
        try:
            connection.recv(1 << 16)
            pending = bytearray(PREFACE)
            for piece in _encode(stream):
                pending += piece
                if len(pending) > _CHUNK:
                    connection.sendall(pending)
                    pending.clear()
            connection.sendall(pending)
            while connection.recv(1 << 16):  # until the reader leaves
                pass
        except OSError:
            return


def main() -> None:
    """Serve one attack."""
    attack = ATTACKS[sys.argv[1]]
    next(attack())  # pyarrow imports much for the first one
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    print(f"tcp://127.0.0.1:{port}?want_data={WANT_DATA}&ticket=t", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, attack()), daemon=True).start()


if __name__ == "__main__":
    main()
