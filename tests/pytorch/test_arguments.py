"""Wrong arguments of the datasets raise one kind of error, which names the argument.

The parameters are read from the signatures, so that a new one cannot be left out.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
import splitarrow.pytorch
from splitarrow.errors import SplitArrowError, UsageError
from splitarrow.pytorch import MapDataset, Mixture, Packed, StreamDataset

torch: Any = import_module("torch")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]


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
    "uneven": [[1], [1, 2]],
    "dict": {"a": 1},
    "dict of lists": {"id": [1]},
    "dict of numbers": {1: 2},
    "dict of objects": {"a": Unknown()},
    "tuple": ("id", ">", "x"),
    "array": np.arange(3),
    "set": {"id"},
    "slice": slice(1, 2),
    "column": pa.array([1]),
    "tensor": torch.arange(3),
    "type": bytearray,
}
CLASSES = {
    name: each
    for name in splitarrow.pytorch.__all__
    if not name.endswith("Metrics")  # which are results
    for each in [getattr(splitarrow.pytorch, name)]
}
# What `splitarrow.connect` and reads of clients check, whose own tests try these.
OF_CLIENTS = {"uri", "filter", "token", "token_file", "tls", "memory"}
# Their errors pass unchanged.
FUNCTIONS = {"transform", "collate"}
# What the reference of the package names; other methods serve the datasets themselves.
METHODS: dict[str, dict[str, Any]] = {
    "__getitem__": {},
    "__getitems__": {},
    "export_metrics": {},
    "load_state_dict": {},
    "locate": {"step": 0},
    "metrics": {},
    "rows": {},
    "set_epoch": {},
    "skip": {},
    "state_dict": {},
    "watch": {},
}


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    lists = pa.array([[n] * 3 for n in range(8)], pa.list_(pa.int64()))
    words = pa.array(["a", "b"] * 4).dictionary_encode()
    table = pa.table({"id": range(8), "word": words, "ids": lists})
    with splitarrow.serve({"t": table}, control="grpc://127.0.0.1:0") as server:
        yield str(server.control_uri)


def open_dataset(uri: str, kind: Any, **options: Any) -> Any:
    """Return a dataset of a kind that works, apart from the options."""
    given: dict[str, Any] = {"uri": uri, "name": "t"}
    if kind is Mixture:
        given = {"parts": [(open_dataset(uri, StreamDataset), 1)]}
    elif kind is Packed:
        part = open_dataset(uri, StreamDataset, columns="ids")
        given = {"dataset": part, "tokens": "ids", "length": 4}
    elif kind is StreamDataset:
        given["batch_rows"] = 2
    return kind(**{**given, **options})


def read(dataset: Any) -> None:
    """Read a batch or a row."""
    if isinstance(dataset, MapDataset):
        dataset.rows([0])
    else:
        next(iter(dataset), None)


def try_values(call: Callable[[Any], Any]) -> dict[str, str]:
    """Call a function with each value, and return the errors of foreign types, by value."""
    leaked: dict[str, str] = {}
    for name, value in VALUES.items():
        try:
            call(value)
        except SplitArrowError:
            pass
        except Exception as error:  # what this test looks for
            leaked[name] = f"{type(error).__name__}: {error}"
    return leaked


def parameters(function: Any) -> list[str]:
    """Return the names of the parameters that are declared."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, each in CLASSES.items()
        for name in parameters(each.__init__)
        if name not in OF_CLIENTS
    ],
)
def test_each_argument_of_a_dataset(uri: str, kind: str, name: str) -> None:
    def call(value: Any) -> None:
        dataset = open_dataset(uri, CLASSES[kind], **{name: value})
        if name not in FUNCTIONS:
            read(dataset)

    assert not try_values(call)


@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        (kind, method, name)
        for kind, each in CLASSES.items()
        for method in METHODS
        if getattr(getattr(each, method, None), "__module__", "").startswith("splitarrow")
        for name in parameters(getattr(each, method))
    ],
)
def test_each_argument_of_a_method(uri: str, kind: str, method: str, name: str) -> None:
    pytest.importorskip("prometheus_client")
    dataset = open_dataset(uri, CLASSES[kind])

    def call(value: Any) -> None:
        getattr(dataset, method)(**{**METHODS[method], name: value})

    leaked = try_values(call)
    if kind == "MapDataset":  # of rows that do not exist
        leaked = {key: text for key, text in leaked.items() if not text.startswith("IndexError")}
    assert not leaked


def list_leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the containers in a state, and the keys of their items."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(items):
        yield value, key
        if isinstance(each, dict | list):
            yield from list_leaves(each)


@pytest.mark.parametrize("kind", [StreamDataset, Mixture, Packed])
def test_each_value_of_a_state(uri: str, kind: Any) -> None:
    dataset = open_dataset(uri, kind)
    state = json.loads(json.dumps(dataset.state_dict(1)))
    places = len(list(list_leaves(state)))
    assert places > 10
    before = json.dumps(dataset.state_dict(0))
    for place in range(places):
        for value in (None, "x", -1, [], {"a": 1}):
            changed = deepcopy(state)
            container, key = list(list_leaves(changed))[place]
            container[key] = value
            try:
                dataset.load_state_dict(changed)
            except UsageError:
                assert json.dumps(dataset.state_dict(0)) == before, (key, value)
            else:
                dataset = open_dataset(uri, kind)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (StreamDataset, {"columns": 3}, "columns is 3; expected one name or more"),
        (StreamDataset, {"batch_rows": "9"}, "batch_rows is '9'; expected an integer, 1 or more"),
        (StreamDataset, {"seed": 1.5}, "seed is 1.5; expected an integer"),
        (StreamDataset, {"rank": 2, "world_size": 2}, "rank is 2; expected 0 to 1 for 2 ranks"),
        (StreamDataset, {"world_size": 0, "rank": 0}, "world_size is 0; expected 1 or more"),
        (StreamDataset, {"device": "gpu"}, "device is 'gpu'"),
        (StreamDataset, {"shuffle": "no"}, "shuffle is 'no'; expected True or False"),
        (StreamDataset, {"collate": 1}, "collate is 1; expected a function, or None"),
        (StreamDataset, {"categories": {"word": [1]}}, r"categories\['word'\] has values that are"),
        (MapDataset, {"cache_bytes": -1}, "cache_bytes is -1; expected 0 or more"),
        (Mixture, {"schedule": [3]}, r"an item of schedule is 3; expected pairs such as"),
        (Mixture, {"stop": "never"}, "stop is 'never'; expected first, all, repeat"),
        (Mixture, {"label": 3}, "label is 3; expected a string"),
        (Packed, {"length": 0}, "length is 0; expected 1 or more"),
        (Packed, {"tokens": None}, "tokens is None; expected a string"),
        (Packed, {"pad": {"ids": "x"}}, r"pad\['ids'\] is 'x'; expected an integer"),
        (Packed, {"dataset": 3}, "dataset is 3; expected a StreamDataset or a Mixture"),
    ],
)
def test_an_error_names_the_argument(uri: str, kind: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_dataset(uri, kind, **options)


@pytest.mark.parametrize("weights", ["ab", [1, 2], [-1], [0], [float("nan")], [None], 3])
def test_weights_are_refused(uri: str, weights: Any) -> None:
    with pytest.raises(UsageError, match="weights"):
        open_dataset(uri, Mixture, schedule={5: weights})


RESULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dict": (lambda batch: batch.to_pydict(), "an object of type dict; expected a pyarrow.Record"),
    "list": (lambda batch: batch.to_pylist(), "an object of type list"),
    "None": (lambda batch: None, "an object of type NoneType"),
    "Table": (lambda batch: pa.Table.from_batches([batch]), "an object of type Table"),
}


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("result", RESULTS)
def test_what_a_transform_returns_is_checked(uri: str, threads: int, result: str) -> None:
    transform, message = RESULTS[result]
    dataset = open_dataset(uri, StreamDataset, transform=transform, threads=threads)
    rows = open_dataset(uri, MapDataset, transform=transform)
    for each in (dataset, Mixture([(dataset, 1)]), rows):
        with pytest.raises(UsageError, match=f"transform returned {message}"):
            read(each)


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_error_of_a_function_passes_unchanged(uri: str, threads: int, name: str) -> None:
    error = KeyError("own")

    def fail(_: Any) -> Any:
        raise error

    dataset = open_dataset(uri, StreamDataset, threads=threads, **{name: fail})
    rows = open_dataset(uri, MapDataset, **{name: fail})
    for each in (dataset, Mixture([(dataset, 1)]), rows):
        with pytest.raises(KeyError) as raised:
            read(each)
        assert raised.value is error
