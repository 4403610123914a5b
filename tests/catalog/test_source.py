"""Sources made of generators: closing, from any thread, at any time."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pyarrow as pa
import pytest

from splitarrow.errors import ClosedError, InvalidRequestError, NotFoundError
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.catalog.base import GROUP_BYTES, Encoding
from splitarrow.server.catalog.encoded import Batches, encoded_groups
from splitarrow.server.catalog.selection import Selection
from splitarrow.server.catalog.source import Groups, GroupSource

from .reading import drain, numbers

MESSAGE = SourceMessage(b"", None)


def test_it_lets_go_once() -> None:
    released: list[str] = []

    def groups() -> Groups:
        try:
            while True:
                yield [MESSAGE]
        finally:
            released.append("generator")

    source = GroupSource(groups(), blocking=False, on_close=lambda: released.append("files"))
    assert next(iter(source)) == [MESSAGE]
    source.close()
    source.close()
    assert released == ["generator", "files"]
    with pytest.raises(ClosedError):
        next(iter(source))


def test_it_lets_go_although_nothing_was_read() -> None:
    released: list[str] = []

    def groups() -> Groups:
        yield [MESSAGE]

    GroupSource(groups(), blocking=True, on_close=lambda: released.append("files")).close()
    assert released == ["files"]


def test_closing_does_not_wait_for_a_thread_at_work() -> None:
    working, go_on = threading.Event(), threading.Event()
    released: list[int] = []

    def groups() -> Groups:
        working.set()
        assert go_on.wait(30)
        yield [MESSAGE]

    source = GroupSource(
        groups(), blocking=True, on_close=lambda: released.append(threading.get_ident())
    )
    got: list[list[SourceMessage]] = []
    worker = threading.Thread(target=lambda: got.append(next(source)))
    worker.start()
    assert working.wait(30)
    source.close()
    assert released == []
    go_on.set()
    worker.join(30)
    assert len(released) == 1
    assert got == [[MESSAGE]]


def test_groups_are_bounded_and_the_schema_comes_first() -> None:
    sent = numbers(200, 500)
    schema = sent[0].schema

    def batches() -> Batches:
        for batch in sent:
            yield batch, None

    served = drain(
        GroupSource(
            encoded_groups(Selection(schema), batches(), "test"), blocking=True, on_close=list
        )
    )
    assert len(served.groups[0]) == 1
    assert served.batches == sent
    total = sum(message.body_length for message in served.messages)
    assert len(served.groups) >= total // (2 * GROUP_BYTES)


def test_what_a_slow_source_gave_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("splitarrow.server.catalog.encoded.time.monotonic", lambda: next(clock))
    sent = numbers(3)

    def batches() -> Batches:
        for batch in sent:
            yield batch, None

    groups = list(encoded_groups(Selection(sent[0].schema), batches(), "test"))
    assert len(groups) == 1 + 3


def test_a_limit_stops_the_batches() -> None:
    taken: list[int] = []

    def batches() -> Generator[tuple[pa.RecordBatch, None]]:
        for number, batch in enumerate(numbers(10)):
            taken.append(number)
            yield batch, None

    for limit, number in ((0, 0), (1, 1), (100, 1), (101, 2)):
        taken.clear()
        selection = Selection(numbers(1)[0].schema, limit=limit)
        groups = list(encoded_groups(selection, batches(), "test"))
        assert sum(message.rows for group in groups for message in group) == limit
        assert len(taken) == number


SCHEMA = pa.schema(
    [("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8()), ("c", pa.int8())], metadata={"k": "v"}
)


def test_a_selection_is_resolved_against_the_schema() -> None:
    request = Request("x", columns=("c", "b"), limit=5)
    selection = Selection.resolve(request, Encoding("lz4", 100), SCHEMA)
    assert (selection.columns, selection.included) == ((3, 1), [1, 3])
    assert selection.schema.equals(
        pa.schema([("c", pa.int8()), ("b", pa.int8())], metadata={"k": "v"}), check_metadata=True
    )
    assert (selection.limit, selection.batch_rows, selection.codec) == (5, 100, "lz4")
    own = Request("x", compression="none", batch_rows=7)
    selection = Selection.resolve(own, Encoding("lz4", 100), SCHEMA)
    assert (selection.columns, selection.batch_rows, selection.codec) == (None, 7, None)


@pytest.mark.parametrize(
    ("request_", "error", "why"),
    [
        (Request("x", columns=("d",)), NotFoundError, "no column 'd'; there are 'a', 'b', 'c'"),
        (Request("x", columns=("A",)), NotFoundError, "no column 'A'; the nearest is 'a'"),
        (Request("x", columns=("a",)), InvalidRequestError, "'a' is ambiguous: 2 columns have it"),
        (Request("x", columns=("b", "b")), InvalidRequestError, "asked for twice"),
        (Request("x", format="vortex"), InvalidRequestError, "in the format 'vortex'"),
    ],
)
def test_a_selection_that_makes_no_sense(
    request_: Request, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as raised:
        Selection.resolve(request_, Encoding(), SCHEMA)
    assert raised.value.stream == "x"  # pyright: ignore[reportAttributeAccessIssue]
