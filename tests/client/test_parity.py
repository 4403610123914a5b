"""The blocking and the asynchronous API offer the same, under the same names."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import splitarrow
from splitarrow import aio
from splitarrow.client.arguments import ReadPlan, StreamOptions

PAIRS = [
    (splitarrow.Stream, aio.AsyncStream),
    (splitarrow.DatasetStream, aio.AsyncDatasetStream),
    (splitarrow.Dataset, aio.AsyncDataset),
    (splitarrow.Client, aio.AsyncClient),
    (splitarrow.ClusterClient, aio.AsyncClusterClient),
]
# Mappings, lazy scans, diagnoses, Arrow's readers, its C stream interface, Spark's planner and the
# command line block.
BLOCKING_ONLY = {
    *("get", "items", "keys", "values"),
    "to_reader",
    "choose_format",
    "describe_replicas",
    "keep_messages",
    "scan_polars",
    "schema_metadata",
}
# Wraps the client of one daemon of a cluster.
ASYNC_ONLY = {"of"}
# Return at once, so that finalizers and signal handlers may call them; or return an object that
# connects when it is entered, or an iterator.
NEVER_AWAITED = {"arrays", "batches_with_metadata", "cancel", "close", "read", "tensors"}


def public_members(cls: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")
    }


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def ids(pair: tuple[type, type]) -> str:
    return pair[0].__name__


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_both_forms_have_the_same_members(pair: tuple[type, type]) -> None:
    one, other = map(public_members, pair)
    assert one.keys() - BLOCKING_ONLY == other.keys() - ASYNC_ONLY


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_members_have_the_same_types_and_parameters(pair: tuple[type, type]) -> None:
    members, async_members = map(public_members, pair)
    for name in members.keys() & async_members.keys():
        one, other = members[name], async_members[name]
        assert isinstance(one, property) == isinstance(other, property), name
        if not isinstance(one, property):
            assert parameters(one) == parameters(other), name
            assert inspect.iscoroutinefunction(other) == (name not in NEVER_AWAITED), name


@pytest.mark.parametrize("name", ["connect", "open"])
def test_functions_have_the_same_parameters(name: str) -> None:
    assert parameters(getattr(splitarrow, name)) == parameters(getattr(aio, name))


def test_each_option_has_one_default() -> None:
    functions: list[Callable[..., Any]] = [
        *(StreamOptions, ReadPlan),
        *(splitarrow.connect, aio.connect, splitarrow.ClusterClient),
    ]
    defaults: dict[str, set[Any]] = {}
    for parameter in itertools.chain.from_iterable(map(parameters, functions)):
        if parameter.default is not parameter.empty:
            defaults.setdefault(parameter.name, set()).add(parameter.default)
    assert {name: values for name, values in defaults.items() if len(values) > 1} == {}
    heads = (splitarrow.Dataset.head, aio.AsyncDataset.head, splitarrow.Stream.head)
    assert {inspect.signature(head).parameters["rows"].default for head in heads} == {5}


@pytest.mark.parametrize(
    "function",
    [
        *(splitarrow.open, aio.open, splitarrow.Client.read, aio.AsyncClient.read),
        *(splitarrow.ClusterClient.read, aio.AsyncClusterClient.read),
        *(splitarrow.Dataset.read, splitarrow.Dataset.to_pandas, aio.AsyncDataset.to_polars),
    ],
)
def test_every_form_of_a_read_takes_the_same_arguments(function: Callable[..., Any]) -> None:
    *_, arguments = parameters(function)
    assert arguments.kind is arguments.VAR_KEYWORD
    assert arguments.annotation == "Unpack[ReadArguments]"


def test_every_public_class_of_a_client_has_an_async_form() -> None:
    names = {name for name in splitarrow.__all__ if name.endswith(("Client", "Dataset", "Stream"))}
    assert {f"Async{name}" for name in names} | {"connect", "open"} == set(aio.__all__)


@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_both_forms_iterate_and_are_contexts(pair: tuple[type, type]) -> None:
    one, other = pair
    for special in ("enter", "exit", "iter", "next"):
        has = hasattr(one, f"__{special}__")
        assert has == hasattr(other, f"__a{special}__"), special
