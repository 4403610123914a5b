"""The asynchronous client passes every call on to a blocking one, in a thread."""

from __future__ import annotations

import inspect
import pickle
import threading
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.dataset.aio import AsyncClient
from splitarrow.client.dataset.client import Client
from splitarrow.errors import ClosedError
from splitarrow.protocol.memory import DEFAULT_ALLOCATOR
from splitarrow.protocol.request import Request

SCHEMA = pa.schema([("n", pa.int64())])


class Info:
    """A description of a dataset."""

    def __init__(self, name: str) -> None:
        self.name = name


class Blocking:
    """A blocking client that records its calls and the threads that make them."""

    uri = "grpc://a:1"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, *arguments, options))
            self.threads.append(threading.current_thread())
            if name == "datasets":
                return [Info("d"), Info("e")]
            if name in ("drop", "discard"):
                return None
            return Info(arguments[0]) if name == "info" else (name, "result")

        if name.startswith("_"):
            raise AttributeError(name)
        return call


BLOCKING = Blocking()
"""The client that a pickled one connects to."""


def connect() -> Any:
    return BLOCKING


REQUEST = Request("d")
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("datasets", (None,), {}),
    ("datasets", ("d*",), {}),
    ("describe", (REQUEST,), {}),
    ("info", ("d",), {}),
    ("schema", ("d",), {}),
    ("count_rows", ("d",), {"filter": "n > 1", "version": "7", "timeout": 2.5}),
    ("list_lengths", ("d", "n"), {"filter": "n > 1", "version": "7", "timeout": 2.5}),
    ("sql", ("SELECT 1",), {}),
    ("drop", ("d",), {}),
    ("status", (), {}),
    ("put", ("d", [1]), {"schema": SCHEMA, "progress": print}),
    (
        "put_shard",
        ("d", [1]),
        {"job": "j", "ordinal": 2, "schema": SCHEMA, "compression": "lz4", "progress": print},
    ),
    (
        "publish",
        ("d",),
        {
            "job": "j",
            "ordinals": [1],
            "shards_total": 3,
            "snapshot": "s",
            "mode": "append",
            "schema": SCHEMA,
            "properties": {"k": "v"},
        },
    ),
    ("discard", ("d", "j"), {}),
    ("act", ("count", b"body"), {"dataset": "d"}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
async def test_a_call_is_made_in_a_thread_with_all_arguments(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    blocking: Any = Blocking()
    client = AsyncClient(lambda: blocking)
    with pytest.raises(ClosedError, match="is not connected; enter it with 'async with'"):
        await getattr(client, name)(*arguments, **options)
    async with client:
        result = await getattr(client, name)(*arguments, **options)
    call, close = blocking.calls
    assert call == (name, *arguments, options)
    assert close == ("close", {})
    if name in ("datasets", "info"):
        found = result if isinstance(result, list) else [result]
        assert [info.name for info in found] == ["d", "e"][: len(found)]
    else:
        assert result == (None if name in ("drop", "discard") else (name, "result"))
    assert blocking.threads[0] is not threading.current_thread()


@pytest.mark.parametrize("name", ["count_rows", "put", "put_shard", "publish", "act"])
async def test_a_call_without_options_has_the_defaults_of_the_blocking_one(name: str) -> None:
    required: dict[str, Any] = {
        "put_shard": {"job": "j", "ordinal": 0},
        "publish": {"job": "j", "ordinals": [0]},
    }
    blocking: Any = Blocking()
    async with AsyncClient(lambda: blocking) as client:
        arguments = ["d", *([[1]] if name.startswith("put") else [])]
        await getattr(client, name)(*arguments, **required.get(name, {}))
    _, *passed, options = blocking.calls[0]
    signature = inspect.signature(getattr(Client, name))
    expected = signature.bind(None, *arguments, **required.get(name, {}))
    actual = signature.bind(None, *passed, **options)
    expected.apply_defaults()
    actual.apply_defaults()
    assert actual == expected


async def test_a_read_is_opened_when_it_is_entered() -> None:
    class Stream:
        def cancel(self) -> None: ...
        def close(self) -> None: ...

    opened: list[Any] = []

    class Reading(Blocking):
        def read(self, *arguments: Any, **options: Any) -> Any:
            opened.append((arguments, options))
            return Stream()

    blocking: Any = Reading()
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Client.read).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    given = {name: f"a {name}" for name in defaults} | {"memory": DEFAULT_ALLOCATOR}
    async with AsyncClient(lambda: blocking) as client:
        stream, other = client.read("d"), client.read("e", **given)  # pyright: ignore[reportArgumentType]
        assert opened == []
        async with stream, other:
            pass
    assert opened == [(("d",), defaults), (("e",), given)]


async def test_a_client_is_a_collection_and_states_its_address() -> None:
    client = AsyncClient(connect)
    assert repr(client) == "<splitarrow.AsyncClient not connected>"
    client.close()  # There is nothing to close.
    async with client as entered:
        assert entered is client
        assert client.uri == "grpc://a:1"
        assert repr(client) == "<splitarrow.AsyncClient of grpc://a:1>"
        assert [name async for name in client] == ["d", "e"]
        dataset = await client.dataset("d")
        assert dataset.info.name == "d"
        assert dataset._read == client.read


async def test_a_copy_of_a_client_connects_by_itself() -> None:
    copy = pickle.loads(pickle.dumps(AsyncClient(connect)))
    assert isinstance(copy, AsyncClient)
    assert repr(copy) == "<splitarrow.AsyncClient not connected>"
    async with copy:
        assert copy._client is BLOCKING


async def test_the_asynchronous_form_of_a_client_is_connected() -> None:
    blocking: Any = Blocking()
    client = AsyncClient.of(blocking)
    assert await client.status() == ("status", "result")
    async with client:
        assert await client.status() == ("status", "result")
    assert [call[0] for call in blocking.calls] == ["status", "status", "close"]
