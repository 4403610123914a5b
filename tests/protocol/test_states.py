"""The state tables: every entry is a step, everything else an error that says where it happened."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from splitarrow.errors import ProtocolError
from splitarrow.protocol.states import (
    READER,
    SERVER,
    Machine,
    ReaderEvent,
    ReaderState,
    ServerEvent,
    ServerState,
    mermaid,
)

Table = Mapping[tuple[Any, Any], Any]
ROLES: list[tuple[str, Table, Enum, type[Enum], type[Enum]]] = [
    ("server", SERVER, ServerState.PREFACE, ServerState, ServerEvent),
    ("reader", READER, ReaderState.CONNECTING, ReaderState, ReaderEvent),
]
PRESENT = [(table, *entry) for _, table, *_ in ROLES for entry in table.items()]
MISSING = [
    (table, state, event)
    for _, table, _, states, events in ROLES
    for state, event in itertools.product(states, events)
    if (state, event) not in table
]


def path_to(table: Table, start: Enum, goal: Enum) -> list[Enum] | None:
    """Return events that lead from one state to another."""
    paths: dict[Enum, list[Enum]] = {start: []}
    frontier = [start]
    while frontier:
        state = frontier.pop(0)
        for (source, event), target in table.items():
            if source is state and target not in paths:
                paths[target] = [*paths[state], event]
                frontier.append(target)
    return paths.get(goal)


@pytest.mark.parametrize(("table", "step", "target"), PRESENT, ids=str)
def test_each_entry_can_be_reached_and_leads_to_its_state(
    table: Table, step: tuple[Enum, Enum], target: Enum
) -> None:
    start = next(start for _, candidate, start, *_ in ROLES if candidate is table)
    path = path_to(table, start, step[0])
    assert path is not None, f"no way leads to {step[0]}"
    machine = Machine(table, start)
    for event in path:
        machine.on(event)
    assert machine.state is step[0]
    assert machine.on(step[1]) is target
    assert machine.state is target


@pytest.mark.parametrize(("table", "state", "event"), MISSING, ids=str)
def test_each_missing_entry_raises_and_names_state_event_and_stream(
    table: Table, state: Enum, event: Enum
) -> None:
    machine = Machine(table, state, "flights")
    with pytest.raises(ProtocolError) as caught:
        machine.on(event)
    error = caught.value
    assert (error.state, error.stream) == (state.value, "flights")
    assert repr(event.value) in str(error)
    assert "'flights'" in str(error)
    assert f"state {state.value}" in str(error)
    assert machine.state is state, "a refused event changes nothing"


@pytest.mark.parametrize(("name", "table", "start", "states", "events"), ROLES)
def test_every_state_and_event_is_used(
    name: str, table: Table, start: Enum, states: type[Enum], events: type[Enum]
) -> None:
    assert {state for state, _ in table} | set(table.values()) == set(states)
    assert {event for _, event in table} == set(events)


def test_a_server_streams_one_stream_at_a_time() -> None:
    assert (ServerState.STREAMING, ServerEvent.WANT_DATA) not in SERVER
    assert (ServerState.PREFACE, ServerEvent.WANT_DATA) not in SERVER


def test_a_reader_ends_only_from_a_stream_with_a_schema() -> None:
    ends = {state for (state, event) in READER if event is ReaderEvent.PROVEN_END}
    assert ends == {ReaderState.STREAMING}


@pytest.mark.parametrize(("name", "table", "start", "states", "events"), ROLES)
def test_the_diagram_shows_each_entry_once(
    name: str, table: Table, start: Enum, states: type[Enum], events: type[Enum]
) -> None:
    lines = mermaid(table, start).splitlines()
    assert lines[:2] == ["stateDiagram-v2", f"    [*] --> {start.name}"]
    assert len(lines) == 2 + len(table)
    for (state, event), target in table.items():
        assert lines.count(f"    {state.name} --> {target.name}: {event.value}") == 1
