"""Packing documents into rows of a fixed length: which tokens of which document are in which row.

The documents are one sequence for all ranks, so the packs are, too. What a packer holds between two
documents is small, and part of a checkpoint.

This module does no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..errors import UsageError
from ..formats.arguments import check_choice, check_integer
from .mixing import MixPosition, Numbers, Places, RowFinder, Segment

Policy = Literal["fit", "split"]
"""How documents are packed."""
_READ_DOCUMENTS = 1024


class Slice(NamedTuple):
    """Consecutive tokens of a document."""

    document: int
    """The number of the document in the epoch."""
    begin: int
    """The first token."""
    end: int
    """The token after the last."""


Pack = tuple[Slice, ...]
"""The content of one row."""


class Packer:
    """Packs documents in the order in which it gets them.

    ``fit`` puts a document into the first of at most `window` open packs that has room for it, and
    otherwise into a new one; then the fullest open pack is ready. Documents that are longer than a
    row are split. ``split`` puts documents one after the other, and splits them where a row ends.
    """

    def __init__(
        self, length: int, policy: Policy, window: int, packs: Sequence[Pack] = ()
    ) -> None:
        self._length = length
        self._window = window if policy == "fit" else 1
        self._splits = policy == "split"
        self._packs = [list(pack) for pack in packs]
        self._rooms = [length - count_tokens(pack) for pack in packs]

    @property
    def open_packs(self) -> tuple[Pack, ...]:
        """The packs that are not full, oldest first."""
        return tuple(tuple(pack) for pack in self._packs)

    def add(self, document: int, tokens: int) -> Iterator[Pack]:
        """Add a document, and yield the packs that are ready now."""
        begin = 0
        while begin < tokens:
            count = min(self._length, tokens - begin)
            if self._splits and self._rooms:
                count = min(count, self._rooms[0])
            yield from self._place(Slice(document, begin, begin + count), count)
            begin += count

    def _place(self, part: Slice, count: int) -> Iterator[Pack]:
        for index, room in enumerate(self._rooms):
            if count <= room:
                self._packs[index].append(part)
                self._rooms[index] = room - count
                break
        else:
            if len(self._rooms) == self._window:
                yield self._close(self._rooms.index(min(self._rooms)))
            index = len(self._rooms)
            self._packs.append([part])
            self._rooms.append(self._length - count)
        if not self._rooms[index]:
            yield self._close(index)

    def _close(self, index: int) -> Pack:
        del self._rooms[index]
        return tuple(self._packs.pop(index))

    def finish(self) -> Iterator[Pack]:
        """Yield the packs that are not full."""
        while self._rooms:
            yield self._close(0)


def count_tokens(pack: Pack) -> int:
    """Return the number of tokens in a pack."""
    return sum(end - begin for _, begin, end in pack)


def check_policy(length: int, policy: str, window: int) -> None:
    """Raise `UsageError` if a packer cannot be made."""
    for name, value in (("length", length), ("window", window)):
        check_integer(name, value, 1)
    check_choice("policy", policy, Policy)


@dataclass(frozen=True, slots=True)
class PackPosition:
    """A position in an epoch of packs. All ranks have delivered the same number of batches."""

    steps: int
    """The number of steps in the epoch."""
    documents: MixPosition
    """The position in the documents; each one counts as a step."""
    ready: tuple[Pack, ...] = ()
    """The packs that are ready for the next step."""
    open_packs: tuple[Pack, ...] = ()
    """The packs that are not ready."""

    earlier = 0
    """Steps are counted from the beginning of the epoch."""

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.documents.epoch

    @property
    def history(self) -> tuple[Segment, ...]:
        """The segments of the documents."""
        return self.documents.segments

    def after(self, steps: int) -> PackPosition:
        """Refuse to find another position: it depends on the lengths of the documents."""
        raise UsageError("the state of a loader with packs needs its dataset; load it there")

    def encode(self) -> dict[str, Any]:
        """Return the position as a dict of plain values, for checkpoints."""
        packs = {"ready": self.ready, "open": self.open_packs}
        lists = {
            key: [[list(part) for part in pack] for pack in each] for key, each in packs.items()
        }
        documents = self.documents.encode()
        return {
            "epoch": documents.pop("epoch"),
            "steps": self.steps,
            "documents": documents,
            **lists,
        }

    @classmethod
    def decode(cls, state: Mapping[str, Any]) -> PackPosition:
        """Return the position that a dict describes."""
        documents = MixPosition.decode({"epoch": state["epoch"], **state["documents"]})
        ready, opened = (
            tuple(tuple(Slice(*part) for part in pack) for pack in state[key])
            for key in ("ready", "open")
        )
        return cls(state["steps"], documents, ready, opened)


class Place(NamedTuple):
    """Where a document is."""

    part: int
    """The part of the mixture."""
    turn: int
    """The pass through the part."""
    lane: int
    """The lane of the part."""
    position: int
    """The position in the epoch of the part."""
    fraction: float
    """The lane as a fraction of all lanes."""


class PackSequence:
    """The packs of an epoch from a position on."""

    def __init__(
        self,
        position: PackPosition,
        packer: Packer,
        finder: RowFinder,
        find_lengths: Callable[[Places], Numbers],
    ) -> None:
        self._position = position
        self._packer = packer
        self._finder = finder
        self.find_lengths = find_lengths
        """Returns the lengths of documents."""
        self._ready: deque[Pack] = deque(position.ready)
        self._document = position.documents.steps
        self._documents: Iterator[tuple[int, Place, int]] = self._read_documents(self._document)
        self._is_finished = False
        self._steps = position.steps
        self._places: dict[int, Place] = {}
        for document in {part.document for pack in self._held() for part in pack}:
            (_, self._places[document], _) = next(self._read_documents(document, 1))

    def _held(self) -> list[Pack]:
        return [*self._ready, *self._packer.open_packs]

    def _read_documents(
        self, first: int, at_once: int = _READ_DOCUMENTS
    ) -> Iterator[tuple[int, Place, int]]:
        """Yield documents from one on: their numbers, places and lengths."""
        while True:
            places, fractions = self._finder.place(first, first + at_once)
            columns = [*places, fractions, self.find_lengths(places)]
            found = zip(*(each.tolist() for each in columns), strict=True)
            number = first
            for number, (*place, length) in enumerate(found, first):
                yield number, Place(*place), length
            if not len(fractions):
                return
            first = number + 1

    def take(self, count: int) -> list[Pack]:
        """Return the packs of the next step; fewer than `count` at the end of the epoch."""
        while len(self._ready) < count and not self._is_finished:
            found = next(self._documents, None)
            if found is None:
                self._ready.extend(self._packer.finish())
                self._is_finished = True
            else:
                document, place, length = found
                self._document = document + 1
                if length:
                    self._places[document] = place
                    self._ready.extend(self._packer.add(document, length))
        self._steps += 1
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def place(self, document: int) -> Place:
        """Return where a document of the last step, or a later one, is."""
        return self._places[document]

    def forget(self) -> list[Place]:
        """Forget documents whose packs were taken; return the places of those that remain."""
        held = {part.document for pack in self._held() for part in pack}
        self._places = {document: self._places[document] for document in held}
        return list(self._places.values())

    @property
    def position(self) -> PackPosition:
        """The position after the last step."""
        return replace(
            self._position,
            steps=self._steps,
            documents=self._position.documents.after(self._document),
            ready=tuple(self._ready),
            open_packs=self._packer.open_packs,
        )
