"""Wrong arguments of public functions raise one kind of error.

Parameters of public functions and methods get values of wrong types, one at a time. The
parameters are read from the signatures, so that a new one cannot be left out.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from splitarrow import ReadArguments, ServeArguments, geo, variant
from splitarrow.client.dataset.dataset import Dataset
from splitarrow.errors import SplitArrowError, UsageError

TABLE = pa.table({"id": range(20), "name": [str(number) for number in range(20)]})


class Unknown:
    """An object of a type that nothing expects."""


VALUES: dict[str, Any] = {
    "None": None,
    "zero": 0,
    "negative": -1,
    "bool": True,
    "float": 1.5,
    "NaN": float("nan"),
    "huge": 2**70,
    "empty text": "",
    "text": "x",
    "text with NUL": "a\0b",
    "surrogate": "\ud800",
    "bytes": b"\xff\x00",
    "object": Unknown(),
    "empty list": [],
    "empty dict": {},
    "numbers": [1],
    "Nones": [None],
    "dict": {"a": 1},
    "tuple": ("id", ">", "x"),
    "path": Path("/proc/nonexistent"),
    "mixed frame": pd.DataFrame({"a": [1, "x", Unknown()]}),
    "repeated names": pa.table([pa.array([1]), pa.array([2])], names=["id", "id"]),
    "array": np.arange(3),
    "date": datetime.date(2020, 1, 1),
    "set": {"id"},
    "type": int,
    "column": pa.array([1]),
    "condition": pc.field("absent") > 1,
    "schema": pa.schema([("z", pa.int8())]),
    "reversed": (5, 1),
    "texts": ("a", "b"),
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a call creates at a relative path out of the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("uploads")
    data = {"t": TABLE, "tensor": np.arange(6.0)}
    with splitarrow.serve(data, control="grpc://127.0.0.1:0", writable=folder / "up") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Any]:
    with splitarrow.connect(server.control_uri) as client:
        yield client


def try_values(call: Callable[[Any], Any]) -> dict[str, str]:
    """Call a function with each value, and return the errors of foreign types, by value."""
    leaked: dict[str, str] = {}
    for name, value in VALUES.items():
        result = None
        try:
            result = call(value)
            if hasattr(result, "read_all"):
                result.read_all()
        except SplitArrowError:
            pass
        except Exception as error:  # what this test looks for
            leaked[name] = f"{type(error).__name__}: {error}"
        if isinstance(result, splitarrow.Server | splitarrow.Stream | splitarrow.DatasetStream):
            result.close()
        if isinstance(result, splitarrow.Client):
            result.close()
    return leaked


def parameters(function: Any) -> list[str]:
    """Return the names of the parameters that are declared."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.kind not in kinds and each.name != "self"]


@pytest.mark.parametrize("name", sorted(ReadArguments.__optional_keys__))
def test_each_option_of_a_read(server: Any, client: Any, name: str) -> None:
    assert not try_values(lambda value: client.read("t", **{name: value}))
    assert not try_values(lambda value: splitarrow.open(server.uri("t"), **{name: value}))


# Arguments with which a method of the client succeeds, apart from the one that is tried.
REQUIRED: dict[str, dict[str, Any]] = {
    "act": {"action": "status"},
    "announce": {"name": "t", "shards": [0], "reader": "r"},
    "datasets": {},
    "describe": {},
    "discard": {"name": "n", "job": "j"},
    "list_lengths": {"name": "t", "column": "id"},
    "publish": {"name": "n", "job": "j", "ordinals": [0]},
    "put": {"name": "n", "data": TABLE},
    "put_shard": {"name": "n", "data": TABLE, "job": "j", "ordinal": 0},
    "sql": {},
}
METHODS = [
    (name, parameter)
    for name, method in inspect.getmembers(splitarrow.Client, inspect.isfunction)
    if not name.startswith("_") and name not in ("close", "keys", "items", "values")
    for parameter in parameters(method)
    if parameter != "default"  # of `get`, which returns it
]


@pytest.mark.parametrize(("method", "parameter"), METHODS)
def test_each_argument_of_a_client(client: Any, method: str, parameter: str) -> None:
    arguments = REQUIRED.get(method, {"name": "t"})
    call = getattr(client, method)
    leaked = try_values(lambda value: call(**{**arguments, parameter: value}))
    if parameter == "progress":
        leaked.pop("type", None)  # the error of a callback, which passes unchanged
    assert not leaked


@pytest.mark.parametrize("name", parameters(splitarrow.connect))
def test_each_argument_of_connect(server: Any, name: str) -> None:
    arguments: dict[str, Any] = {"uri": server.control_uri, "connect_timeout": 1}
    assert not try_values(lambda value: splitarrow.connect(**{**arguments, name: value}))


@pytest.mark.parametrize("name", ["target", "ticket", "token", "token_file"])
def test_each_argument_of_open(server: Any, name: str) -> None:
    arguments: dict[str, Any] = {"target": f"{server.control_uri}/t", "connect_timeout": 1}
    if name == "ticket":
        arguments["target"] = server.uri("t").partition("&ticket")[0]
    assert not try_values(lambda value: splitarrow.open(**{**arguments, name: value}))


@pytest.mark.parametrize("name", ["datasets", *sorted(ServeArguments.__optional_keys__)])
def test_each_argument_of_serve(name: str) -> None:
    if name == "datasets":
        assert not try_values(lambda value: splitarrow.serve({"x": value}))
        assert not try_values(splitarrow.serve)
    else:
        assert not try_values(lambda value: splitarrow.serve({"x": TABLE}, **{name: value}))


def test_methods_of_a_server(server: Any) -> None:
    assert not try_values(lambda value: server.add("y", value) or server.remove("y"))
    assert not try_values(lambda value: server.uri("t", scheme=value))
    for name in ("uri", "remove"):
        assert not try_values(getattr(server, name)), name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, _ in inspect.getmembers(Dataset, inspect.isfunction)
        if name.startswith(("to_", "head", "scan_", "read"))
    ],
)
def test_each_way_to_read_a_dataset(client: Any, name: str) -> None:
    for option in ("columns", "filter", "limit"):
        method = getattr(client["t"], name)
        assert not try_values(lambda value, method=method, option=option: method(**{option: value}))
    if name in ("head", "to_duckdb"):
        assert not try_values(getattr(client["t"], name))


STREAM_METHODS = [
    name
    for name, method in inspect.getmembers(splitarrow.Stream, inspect.isfunction)
    if not name.startswith("_") and not parameters(method)
]


@pytest.mark.parametrize("name", [*STREAM_METHODS, "head", "to_duckdb"])
@pytest.mark.parametrize("dataset", ["t", "tensor"])
def test_methods_of_an_open_and_of_a_closed_stream(server: Any, name: str, dataset: str) -> None:
    for closed in (False, True):
        with splitarrow.open(server.uri(dataset)) as stream:
            if closed:
                stream.close()
            try:
                getattr(stream, name)()
            except SplitArrowError:
                pass


@pytest.mark.parametrize("kind", [splitarrow.Limits, splitarrow.TlsOptions])
def test_each_field_of_options(kind: Any) -> None:
    for name in parameters(kind):
        assert not try_values(lambda value, name=name: kind(**{name: value})), name


VARIANTS: Any = variant.from_json(pa.array(['{"a": 1}', None]))
# Arguments with which a function succeeds, apart from the one that is tried.
FUNCTIONS: dict[Any, dict[str, Any]] = {
    variant.cast: {"column": VARIANTS, "type": pa.int64()},
    variant.field: {"name": "v"},
    variant.from_json: {},
    variant.from_python: {},
    variant.get: {"column": VARIANTS, "path": "$.a"},
    variant.infer_type: {"column": VARIANTS},
    variant.is_valid: {"column": VARIANTS},
    variant.parse_type: {},
    variant.shred: {"column": VARIANTS},
    variant.to_json: {"column": VARIANTS},
    variant.to_python: {"column": VARIANTS},
    variant.unshred: {"column": VARIANTS},
    geo.bounds: {"column": pa.array([b""])},
    geo.intersects: {"column": "c", "box": (0, 0, 1, 1)},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions_of_variants_and_geometries(function: Any) -> None:
    for name in parameters(function):
        if name not in ("ordered", "nullable"):
            arguments = {**FUNCTIONS[function]}
            leaked = try_values(
                lambda value, given=arguments, name=name: function(**{**given, name: value})
            )
            assert not leaked, name


def test_a_client_and_a_stream_that_are_awaited_explain_how_to_enter_them(server: Any) -> None:
    async def await_one(opened: Any) -> None:
        with pytest.raises(UsageError, match="async with"):
            await opened

    asyncio.run(await_one(splitarrow.aio.connect(server.control_uri)))
    asyncio.run(await_one(splitarrow.aio.open(server.uri("t"))))
    asyncio.run(await_one(splitarrow.aio.open(f"{server.control_uri}/t")))
