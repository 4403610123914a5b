"""Generator sources can be closed from any thread at any time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from splitarrow.errors import ClosedError
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.catalog.dataset import GeneratorSource, MessageGroups

MESSAGE = SourceMessage(b"", None)


def test_closing_releases_the_generator_and_then_the_resources_once() -> None:
    released: list[str] = []

    def groups() -> MessageGroups:
        try:
            while True:
                yield [MESSAGE]
        finally:
            released.append("generator")

    source = GeneratorSource(groups(), blocking=False)
    source.call_on_close(lambda: released.append("files"))
    assert next(iter(source)) == [MESSAGE]
    source.close()
    source.close()
    assert released == ["generator", "files"]
    with pytest.raises(ClosedError):
        next(iter(source))


def test_closing_an_unread_source_releases_its_resources() -> None:
    released: list[str] = []

    def groups() -> MessageGroups:
        yield [MESSAGE]

    source = GeneratorSource(groups(), blocking=True)
    source.call_on_close(lambda: released.append("files"))
    source.close()
    assert released == ["files"]


def test_closing_does_not_wait_for_a_thread_in_the_generator() -> None:
    running, proceed = threading.Event(), threading.Event()
    released: list[int] = []

    def groups() -> MessageGroups:
        running.set()
        assert proceed.wait(30)
        yield [MESSAGE]

    source = GeneratorSource(groups(), blocking=True)
    source.call_on_close(lambda: released.append(threading.get_ident()))
    actual: list[Sequence[SourceMessage]] = []
    worker = threading.Thread(target=lambda: actual.append(next(source)))
    worker.start()
    assert running.wait(30)
    source.close()
    assert released == []
    proceed.set()
    worker.join(30)
    assert len(released) == 1
    assert actual == [[MESSAGE]]
