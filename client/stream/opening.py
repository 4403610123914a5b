"""Opening a stream: the steps from its URIs to a reader that has received the schema.

The steps wait for nothing by themselves. A driver performs each and passes the result back: one
blocks, the other runs under asyncio and trio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

from anyio import to_thread

from ...errors import ConnectError, ConnectionLostError, SplitArrowError
from ...protocol.frames import TaggedFrame
from ...protocol.request import Request
from ...protocol.uri import DataUri
from ...transport import aio, blocking
from ...transport.base import Channel, ConnectOptions
from ...transport.registry import find_transport
from ..arguments import StreamOptions
from ..uris import UNKNOWN_NAME, request_schema, select
from .reader import Reader

ChooseFormat = Callable[[list[DataUri], StreamOptions], "str | None"]
"""Returns the format to request, after reads of its own."""


class Connect(NamedTuple):
    """Connect to the server of a URI. The result is the channel."""

    uri: DataUri
    options: ConnectOptions


class Send(NamedTuple):
    """Send frames on a channel."""

    channel: Channel
    frames: list[TaggedFrame]


class Receive(NamedTuple):
    """Wait for frames on a channel. The result is the frames."""

    channel: Channel


class CallFunction(NamedTuple):
    """Call a function that blocks. The result is that of the function."""

    function: Callable[[], Any]


Step = Connect | Send | Receive | CallFunction


class Opening:
    """What it takes to open a stream: the format, the filter, the connections, a second attempt.

    The preparatory reads have the options of the stream, so that they use no other transport, trust
    no other certificate, and wait no longer.
    """

    def __init__(
        self,
        uris: list[DataUri],
        options: StreamOptions,
        *,
        filter: Any = None,
        choose_format: ChooseFormat | None = None,
    ) -> None:
        self.options = options
        self.reader = Reader(uris, options)
        """The reader that is being opened."""
        self._filter = filter
        self._choose_format = choose_format

    def steps(self) -> Generator[Step, Any, Reader]:
        """Yield the steps, and return the reader. The reader is closed if a step fails."""
        try:
            if self._choose_format is not None:
                choose, uris = self._choose_format, self.reader.uris
                chosen = yield CallFunction(lambda: choose(uris, self.options))
                self._select(Request(UNKNOWN_NAME, format=chosen))
            if self._filter is not None:
                yield from self._bind_filter()
            connect_options = self.options.connect_options
            for attempt in (connect_options, replace(connect_options, reuse=False)):
                reader = self.reader
                try:
                    reader.begin()
                    for uri in reader.uris:
                        channel = yield Connect(uri, attempt)
                        yield Send(channel, reader.attach(channel, uri))
                    reader.start()
                    while not reader.has_schema:
                        reader.expects_more()
                        stream, channel = reader.next_channel()
                        try:
                            frames = yield Receive(channel)
                        except SplitArrowError as error:
                            reader.fail_receiving(error)
                        else:
                            reader.feed(stream, frames)
                    break
                except (ConnectError, ConnectionLostError):
                    if not attempt.reuse or not reader.allows_second_attempt():
                        raise
                    self.reader = Reader(reader.uris, self.options)
        except BaseException as error:
            self.reader.close(error)
            raise
        return self.reader

    def _select(self, request: Request) -> None:
        self.reader = Reader(select(self.reader.uris, request), self.options)

    def _bind_filter(self) -> Generator[Step, Any, None]:
        """Read the schema, and add the filter to the ticket."""
        from ...filters import encode_filter

        preparation = self.options.for_preparation()
        reader = yield from Opening(request_schema(self.reader.uris), preparation).steps()
        reader.close()
        text = encode_filter(self._filter, reader.schema)
        self._select(Request(UNKNOWN_NAME, filter=text))


def open_reader(opening: Opening) -> Reader:
    """Perform the steps on the calling thread."""
    steps, timeout = opening.steps(), opening.options.schema_timeout
    try:
        step = next(steps)
        while True:
            try:
                match step:
                    case Connect(uri, options):
                        result: Any = find_transport(uri).connect(uri, options)
                    case Send(channel, frames):
                        result = blocking.send(channel, frames, timeout)
                    case Receive(channel):
                        result = blocking.receive(channel, timeout)
                    case CallFunction(function):
                        result = function()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


async def open_reader_async(opening: Opening) -> Reader:
    """Perform the steps under asyncio or trio. What can only block runs in a thread."""
    steps, timeout = opening.steps(), opening.options.schema_timeout
    try:
        step = next(steps)
        while True:
            try:
                match step:
                    case Connect(uri, options):
                        transport = find_transport(uri)
                        result: Any = await to_thread.run_sync(transport.connect, uri, options)
                    case Send(channel, frames):
                        result = await aio.send(channel, frames, timeout)
                    case Receive(channel):
                        result = await aio.receive(channel, timeout)
                    case CallFunction(function):
                        result = await to_thread.run_sync(function)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value
