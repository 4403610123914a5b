"""The state tables: every entry is a transition, and every other event is a protocol error."""

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
    draw_diagram,
)

Table = Mapping[tuple[Any, Any], Any]
Role = tuple[Table, Enum, type[Enum], type[Enum]]


@pytest.fixture(params=["server", "reader"])
def role(request: pytest.FixtureRequest) -> Role:
    """The table of a role, its initial state, its states and its events."""
    if request.param == "server":
        return SERVER, ServerState.PREFACE, ServerState, ServerEvent
    return READER, ReaderState.CONNECTING, ReaderState, ReaderEvent


def path_to(table: Table, start: Enum, goal: Enum) -> list[Enum] | None:
    """Return events that lead from one state to another, or None if there are none."""
    paths: dict[Enum, list[Enum]] = {start: []}
    frontier = [start]
    while frontier:
        state = frontier.pop(0)
        for (source, event), target in table.items():
            if source is state and target not in paths:
                paths[target] = [*paths[state], event]
                frontier.append(target)
    return paths.get(goal)


def test_each_entry_is_reachable_and_leads_to_its_state(role: Role) -> None:
    table, start, _, _ = role
    for (state, event), target in table.items():
        path = path_to(table, start, state)
        assert path is not None, f"{state} is unreachable"
        machine = Machine(table, start)
        for earlier in path:
            machine.on(earlier)
        assert machine.state is state
        assert machine.on(event) is target, (state, event)
        assert machine.state is target


def test_an_event_without_an_entry_raises_and_changes_nothing(role: Role) -> None:
    table, _, states, events = role
    for state, event in itertools.product(states, events):
        if (state, event) in table:
            continue
        machine = Machine(table, state, "flights")
        with pytest.raises(ProtocolError) as caught:
            machine.on(event)
        assert str(caught.value) == (
            f"unexpected event {event.value!r} (stream 'flights', state {state.value})"
        )
        assert machine.state is state, (state, event)


def test_every_state_and_event_is_used(role: Role) -> None:
    table, _, states, events = role
    assert {state for state, _ in table} | set(table.values()) == set(states)
    assert {event for _, event in table} == set(events)


def test_a_server_sends_one_stream_at_a_time() -> None:
    assert (ServerState.STREAMING, ServerEvent.WANT_DATA) not in SERVER
    assert (ServerState.PREFACE, ServerEvent.WANT_DATA) not in SERVER


def test_a_reader_ends_only_after_the_schema() -> None:
    ends = {state for (state, event) in READER if event is ReaderEvent.PROVEN_END}
    assert ends == {ReaderState.STREAMING}


def test_the_diagram_shows_each_entry_once(role: Role) -> None:
    table, start, _, _ = role
    lines = draw_diagram(table, start).splitlines()
    assert lines[:2] == ["stateDiagram-v2", f"    [*] --> {start.name}"]
    assert len(lines) == 2 + len(table)
    for (state, event), target in table.items():
        assert lines.count(f"    {state.name} --> {target.name}: {event.value}") == 1
