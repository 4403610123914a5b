"""Sending messages that stay where they are: regions handed over, offsets sent, leases kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import anyio

from ...errors import DatasetError, ExhaustedError, ProtocolError
from ...protocol.bodies import Span
from ...protocol.frames import Handover, Outgoing, Tagged
from ...protocol.leases import LeaseLedger
from ...protocol.placing import Placer
from ...protocol.splitter import SourceMessage, Splitter
from ...protocol.uri import DataUri
from ...transport.regions import FileRegion, RegionFile
from ...transport.shm.handover import pack_handover
from ...transport.shm.mapping import MappedRegion
from ...transport.shm.memory import SealedMemory
from .mappings import Mappings
from .sharing import Sharing
from .source import PlacedSource

_LOOK_SECONDS = 0.1


class Ways(Protocol):
    """How a reader comes to the memory that it is lent."""

    withholds: bool
    """Whether nothing goes to the reader before the first region is handed over."""
    together: int
    """After how many bytes of bodies to send what is lent, even if more could go with it."""
    least: int
    """The size from which on bodies are lent, in bytes; smaller ones are sent."""

    def hand_over(self, file: RegionFile) -> Handover:
        """Return the message that lets the reader reach a file.

        Raises
        ------
        DatasetError
            If it cannot be shared.
        """
        ...

    def hold(self, region: FileRegion) -> object:
        """Return what keeps a lent stretch as it is, as long as it lives."""
        ...


class ByDescriptor:
    """The reader maps the file: it gets a descriptor, and holds on to the file itself.

    Parameters
    ----------
    handle : bytes
        The id of the listener's regions.
    sharing : Sharing
        The leases on files.
    """

    withholds = True
    together = 1 << 62
    least = 0

    def __init__(self, handle: bytes, sharing: Sharing) -> None:
        self._handle = handle
        self._sharing = sharing

    def hand_over(self, file: RegionFile) -> Handover:
        """Return the message that the descriptor goes with; see `Ways.hand_over`."""
        descriptors: tuple[Any, ...] = (file,)
        if not isinstance(file, SealedMemory) and not self._sharing.trust:
            descriptors = (file, self._sharing.guards.watch(file))
        return Handover(pack_handover(self._handle, file.size), descriptors)

    def hold(self, region: FileRegion) -> object:
        """Nothing is needed: the reader has the file open."""
        return None


class ByAddress:
    """The reader copies from the memory of this process, where the file is mapped.

    Parameters
    ----------
    channel : UcxChannel
        The connection, which registers memory for its peer.
    mappings : Mappings
        Where files are mapped.
    """

    withholds = False
    together = 16 << 20
    least = 32 << 10

    def __init__(self, channel: Any, mappings: Mappings) -> None:
        self._channel = channel
        self._mappings = mappings

    def _region(self, file: RegionFile) -> MappedRegion:
        region = self._mappings.region(file)
        if region is None:
            raise DatasetError(f"cannot share {file.path}: it cannot be mapped, or is changing")
        return region

    def hand_over(self, file: RegionFile) -> Handover:
        """Return the message with address and key; see `Ways.hand_over`."""
        return self._channel.hand_over(self._region(file))

    def hold(self, region: FileRegion) -> object:
        """Return a buffer: if the file is to change, its pages are copied first."""
        mapped = self._region(region.file)
        held = mapped.buffer(region.offset, region.nbytes, None)
        mapped.populate(region.offset, region.nbytes)
        return held


class Lender:
    """Lends one reader the memory that its streams lie in.

    Parameters
    ----------
    uri : DataUri
        The listener: its tags, and which streams it carries.
    sharing : Sharing
        How much may be lent.
    ledger : LeaseLedger
        What the reader holds.
    leased : callable
        Returns how many bytes the reader's user holds, over all connections.
    ways : Ways
        How the reader comes to it.
    """

    def __init__(
        self,
        uri: DataUri,
        sharing: Sharing,
        ledger: LeaseLedger,
        leased: Callable[[], int],
        ways: Ways,
    ) -> None:
        self._ledger = ledger
        self._uri = uri
        self._sharing = sharing
        self._leased = leased
        self._ways = ways
        self._held: dict[int, object] = {}
        self._placer = Placer()
        self._region: RegionFile | None = None
        self._freed = anyio.Event()
        self._early: list[Outgoing] = []
        self._sources: list[PlacedSource] = []

    def begin(self, source: PlacedSource) -> None:
        """Note a stream that is lent from here on."""
        self._region = None
        self._early = []
        self._sources.append(source)

    async def frames(self, message: SourceMessage, splitter: Splitter) -> list[Outgoing]:
        """Return the frames of a message, once the reader may hold it.

        The region goes before the schema, so that a reader that met another server than its URI
        is about notices at once; until there is one, nothing goes.

        Raises
        ------
        ExhaustedError
            If the reader holds too much, and frees nothing.
        ProtocolError
            If the message's metadata is malformed.
        """
        ways = self._ways
        if not self._uri.stream.body:
            return splitter.split([message])
        if message.body is None or not self.lends(message):
            frames = splitter.split([message])
            if self._region is not None or not ways.withholds:
                return frames
            self._early += frames
            return []
        (region,) = message.body
        spans = self._spans(message, region)
        await self._wait_for_room(sum(length for _, length in spans))
        frames = []
        if region.file is not self._region:
            part = ways.hand_over(region.file)
            self._region = region.file
            frames.append(Tagged(self._uri.require_want_data(), part.nbytes, (part,)))
        held = ways.hold(region)
        if held is not None:
            self._held.update((offset, held) for offset, length in spans if length)
        self._ledger.grant(spans, time.monotonic())
        frames += self.rest()
        frames += splitter.split_placed(message, spans)
        return frames

    def rest(self) -> list[Outgoing]:
        """Return the frames that wait for a region, for a stream that needs none."""
        frames, self._early = self._early, []
        return frames

    def lends(self, message: SourceMessage) -> bool:
        """Tell whether a message's body is lent; if not it is sent, or there is none."""
        return message.body is not None and message.body_length >= self._ways.least

    @property
    def together(self) -> int:
        """After how many bytes of bodies to send; see `Ways`."""
        return self._ways.together

    def must_wait(self, message: SourceMessage) -> bool:
        """Tell whether a message can only be lent once the reader has freed others."""
        most = self._sharing.max_leased
        return most is not None and self._leased() + message.body_length > most

    def _spans(self, message: SourceMessage, region: Any) -> list[Span]:
        try:
            return self._placer.spans(message.metadata, message.body_length, region.offset)
        except ProtocolError as error:
            raise region.file.corrupt(region.offset, error.message) from None

    async def _wait_for_room(self, nbytes: int) -> None:
        most = self._sharing.max_leased
        if most is None:
            return
        if nbytes > most:
            raise ExhaustedError(
                f"a message of {nbytes} bytes; a reader may hold {most} (--max-leased)"
            )
        until = anyio.current_time() + self._sharing.lease_seconds
        while self._leased() + nbytes > most:
            if anyio.current_time() >= until:
                raise ExhaustedError(
                    f"the reader's user holds {self._leased()} bytes and has freed nothing for "
                    f"{self._sharing.lease_seconds:g} s; {most} are allowed (--max-leased)"
                )
            before = self._ledger.held
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._freed.wait()
            if self._ledger.held != before:
                until = anyio.current_time() + self._sharing.lease_seconds

    def freed(self, offsets: Iterable[int]) -> None:
        """Note what the reader has given back."""
        for offset in offsets:
            self._held.pop(offset, None)
        self._freed.set()
        self._freed = anyio.Event()

    def settle(self) -> None:
        """Let go of the streams that have ended: the reader holds nothing of them any more."""
        self._held.clear()
        while self._sources:
            self._sources.pop().let_go()
