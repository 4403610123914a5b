"""A channel with faults differs from its channel in the frames that arrive, and in nothing else."""

from __future__ import annotations

import inspect
from typing import Any
from unittest.mock import MagicMock, sentinel

import pytest

from splitarrow.protocol.frames import UntaggedFrame
from splitarrow.transport.base import Channel
from splitarrow.transport.faults import Faults, FaultyChannel

PROPERTIES = sorted(
    name for name, member in inspect.getmembers(Channel) if isinstance(member, property)
)


@pytest.fixture
def channel() -> Any:
    """A channel whose properties are all different."""
    values = {name: getattr(sentinel, name) for name in PROPERTIES}
    return MagicMock(spec=Channel, **values)


@pytest.mark.parametrize("name", sorted({*PROPERTIES} - {"is_local", "wake_at"}))
def test_properties_are_those_of_the_channel(channel: Any, name: str) -> None:
    assert getattr(FaultyChannel(channel, Faults()), name) is getattr(sentinel, name)


def test_faulty_data_is_not_trusted_as_local_data(channel: Any) -> None:
    assert FaultyChannel(channel, Faults()).is_local is False


@pytest.mark.parametrize("name", ["fileno", "send_fileno", "send_some"])
def test_results_are_those_of_the_channel(channel: Any, name: str) -> None:
    getattr(channel, name).return_value = sentinel.result
    assert getattr(FaultyChannel(channel, Faults()), name)() is sentinel.result


@pytest.mark.parametrize("name", ["interrupt", "close", "abort"])
def test_the_end_reaches_the_channel(channel: Any, name: str) -> None:
    getattr(FaultyChannel(channel, Faults()), name)()
    getattr(channel, name).assert_called_once_with()


def test_frames_are_sent_unchanged(channel: Any) -> None:
    frames = [UntaggedFrame(b"\1\0\0\0\0")]
    FaultyChannel(channel, Faults(drop=1, corrupt=1)).queue(frames)
    channel.queue.assert_called_once_with(frames)
